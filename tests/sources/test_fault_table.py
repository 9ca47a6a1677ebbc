"""Every fault that a live source must survive has a test for every source that can meet it: this table says which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = ("prometheus", "kubernetes", "elasticsearch", "slurm", "node")
# fault → for each of SOURCES the test (file without test_ and .py, then function), or why it cannot meet it
AT_ONCE, WHOLE, ANSWER = (
    "prometheus:test_a_server_that_fails_at_once",
    "kubernetes:test_a_fault_of_the_whole_server_is_an_answer",
    "elasticsearch:test_a_fault_is_an_answer",
)
HANGS, SLURM_FAILS, NO_SERVER = (
    "slurm_faults:test_the_deadline_ends_the_collection",
    "slurm_faults:test_locating_fails_with_its_reason",
    "- it asks no server",
)
TABLE: dict[str, tuple[str, str, str, str, str]] = {
    "refused": (AT_ONCE, WHOLE, ANSWER, SLURM_FAILS, "node:test_doctor_of_a_machine_without_gpus"),
    "time-out in the middle": (
        "prometheus:test_a_server_that_fails_in_the_middle", "kubernetes:test_a_fault_of_one_question_costs_that_one_only",
        "elasticsearch:test_a_fault_in_the_middle_of_paging_leaves_what_came", HANGS, "kernel_source:test_a_deadline_in_the_middle_keeps_what_was_read",
    ),
    "TLS failure": (
        "prometheus:test_a_certificate_that_is_not_trusted", "kubernetes:test_a_certificate_that_is_not_trusted",
        "elasticsearch:test_a_certificate_that_nobody_signed_is_said", "- munge, not TLS", NO_SERVER,
    ),
    "401, 403": (AT_ONCE, WHOLE, ANSWER, "slurm:test_each_lack_has_the_line_that_changes_it", "kernel_source:test_files_that_may_not_be_read_are_refused"),
    "429 with Retry-After": (
        "prometheus:test_too_many_requests_are_asked_again_when_told", "kubernetes:test_too_many_requests_passes_after_the_wait",
        "elasticsearch:test_too_many_requests_are_asked_again_when_the_server_says", "- no such answer", NO_SERVER,
    ),
    "500": (AT_ONCE, WHOLE, ANSWER, SLURM_FAILS, "nvml:test_a_library_that_crashes"),
    "redirect to a login page": (AT_ONCE, WHOLE, ANSWER, "- no web page", NO_SERVER),
    "body cut in the middle": (AT_ONCE, WHOLE, ANSWER, "slurm_faults:test_half_an_answer_is_kept_and_partial", "kernel_source:test_a_damaged_archive_is_a_part_that_is_missing"),
    "answers very slowly": (
        "prometheus:test_a_very_slow_answer_ends_with_the_deadline", "kubernetes:test_a_header_that_drips_does_not_hold_us",
        ANSWER, HANGS, "node:test_a_hung_driver_costs_the_deadline_once",
    ),
    "an index rolls over while paging": ("- no index", "kubernetes:test_an_expired_continue_token_starts_over", "elasticsearch:test_an_index_that_rolls_over_is_partial", "- no pages", NO_SERVER),
    "a deleted pod or series": (
        "prometheus:test_a_deleted_series_is_told", "kubernetes_objects:test_deleted_pods_that_another_source_named",
        "elasticsearch:test_no_line_of_a_known_job_is_missing", "slurm:test_a_forgotten_job_is_stale_not_missing", "nvml:test_a_gpu_that_the_bus_has_and_nvml_has_not",
    ),
    "a series with a reset": ("prometheus:test_a_counter_reset_is_told", "- no series", "- no series", "- no series", "- one sample"),
    "samples out of order or double": ("prometheus:test_samples_out_of_order_and_double_are_told", "- no series", "elasticsearch_query:test_gaps_are_marked_and_lines_come_once", "slurm_jobs:test_torn_rows_and_other_texts_are_left_out", "- one sample"),
    "staleness markers, old data": (
        "prometheus:test_data_that_ended_early_is_stale", "kubernetes:test_events_that_are_too_old_are_stale",
        "elasticsearch:test_lines_that_end_long_before_the_window_are_stale", "slurm:test_states_of_today_are_called_so", "kernel_source:test_a_quiet_window_keeps_the_lines_before_it",
    ),
    "native histograms": ("prometheus:test_native_histograms_are_refused", "- no series", "- no series", "- no series", "- one sample"),
    "a clock ten minutes off": (
        "prometheus:test_a_clock_that_is_off_is_told", "kubernetes:test_a_clock_that_is_off_is_said",
        "elasticsearch:test_a_clock_that_is_off_is_said", "slurm:test_daemons_that_are_down_and_clocks_that_differ", "- its clock is ours",
    ),
    "empty where data must be": (
        "prometheus:test_an_empty_answer_is_missing", "kubernetes:test_an_empty_list_where_nodes_must_be",
        "elasticsearch:test_no_index_is_missing", "slurm_faults:test_an_unknown_job_is_missing_never_empty", "kernel_source:test_an_empty_ring_buffer_is_missing",
    ),
}  # fmt: skip

# a test of many faults is a test of this one only when it is among its parameters
KINDS = {
    "refused": {"refused"},
    "time-out in the middle": {"hang"},
    "401, 403": {"401", "403"},
    "500": {"500"},
    "redirect to a login page": {"login-page", "html"},
    "body cut in the middle": {"cut"},
    "answers very slowly": {"slow"},
}


@pytest.mark.parametrize(("fault", "source"), [(fault, source) for fault in TABLE for source in SOURCES])
def test_each_cell_is_a_test(fault: str, source: str) -> None:
    cell = TABLE[fault][SOURCES.index(source)]
    if cell.startswith("- "):
        return
    file, function = cell.split(":")
    tree = ast.parse((HERE / f"test_{file}.py").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    assert found
    if "fault" in (argument.arg for argument in found[0].args.args):
        assert KINDS[fault] <= parameters(found[0])


def parameters(test: ast.FunctionDef) -> set[str]:
    """Return what `fault` is in a test's parametrize: the list itself, or the first of each tuple."""
    for mark in test.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.parametrize":
            names, rows = (ast.literal_eval(argument) for argument in mark.args[:2])
            if "fault" in names:
                return {row if isinstance(row, str) else row[0] for row in rows}
    return set()


def test_a_fault_that_a_test_does_not_play_is_noticed() -> None:
    source = """
@pytest.mark.parametrize(("fault", "word"), [("refused", "no"), ("cut", "in the middle")])
def test_many(fault, word): ...
"""
    (test,) = ast.parse(source).body
    assert isinstance(test, ast.FunctionDef)
    assert parameters(test) == {"refused", "cut"}
