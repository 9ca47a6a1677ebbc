"""Tenants: whom a fault of a shared GPU reaches, and what each tenant's requests say."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from workbench import load
from workbench.catalog import table
from workbench.fleet.tenants import Histogram, Tenant, objectives, reach

GPU = "GPU-11111111-2222-3333-4444-555555555555"
MIG = (
    Tenant("a", GPU, instance=1, compute=0, pids=(100,)),
    Tenant("b", GPU, instance=1, compute=1, pids=(200,)),
    Tenant("c", GPU, instance=2, compute=0, pids=(300,)),
    Tenant("far", "GPU-other", instance=1, compute=0, pids=(100,)),
)
SLICED = (Tenant("a", GPU, sharing="time-sliced", pids=(100,)), Tenant("b", GPU, sharing="time-sliced", pids=(200,)))
MPS = (
    Tenant("a", GPU, sharing="mps", pids=(100,)),
    Tenant("b", GPU, sharing="mps", pids=(200,)),
    Tenant("c", GPU, sharing="time-sliced", pids=(300,)),
)


def names(found: tuple[Tenant, ...]) -> str:
    """Return the names, in order."""
    return "".join(one.name for one in found)


@pytest.mark.parametrize(
    ("code", "tenants", "instance", "pid", "reached", "caused", "certain"),
    [
        (79, MIG, None, None, "abc", None, True),  # off the bus: all of the GPU
        (95, MIG, 1, 100, "abc", None, True),  # uncontained: every instance must end before the reset
        (94, MIG, 1, 100, "a", None, True),  # contained: the process that used the memory
        (48, MIG, 1, None, "ab", None, True),  # the memory is the GPU instance's: both of its compute instances
        (48, MIG, None, None, "abc", None, False),  # the line does not tell which
        (48, SLICED, None, 100, "ab", None, True),  # without MIG the memory is all tenants'
        (31, SLICED, None, 200, "b", "b", True),  # an illegal access ends and is caused by one process
        (31, SLICED, None, None, "ab", None, False),  # whose it was nobody told
        (31, MPS, None, 100, "ab", "a", True),  # but clients of one MPS server end together
        (13, MIG, 2, None, "c", "c", True),  # the only tenant of its instance
        (63, MIG, None, None, "", None, True),  # a row was remapped: nobody ends
        (109, MIG, 1, None, "ab", None, True),
        (999, MIG, None, None, "abc", None, False),  # not in the catalog: to say less would be a guess
    ],
)
def test_a_fault_reaches_those_that_it_can_and_no_others(
    code: int, tenants: tuple[Tenant, ...], instance: int | None, pid: int | None, reached: str, caused: str | None, certain: bool
) -> None:
    """Whole GPU, GPU instance, process, clients of one MPS server."""
    told = reach(code, tenants, gpu=GPU, instance=instance, pid=pid)

    assert names(told.reached) == reached
    assert (told.caused_by.name if told.caused_by else None) == caused
    assert told.certain is certain
    assert told.why


def test_every_code_of_the_catalog_has_a_reach() -> None:
    """None fails, and each says why."""
    for row in table("xid"):
        assert reach(int(row["code"]), MIG, gpu=GPU).why


def test_quantiles_hold_within_their_bounds_whatever_was_observed() -> None:
    """Against the observations themselves; the interpolation is PromQL's."""
    random = np.random.default_rng(6)
    bounds = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, math.inf)
    for _ in range(50):
        seen = np.sort(random.lognormal(-0.5, random.uniform(0.2, 1.5), int(random.integers(1, 400))))
        cumulated = [(seen <= bound).sum() for bound in bounds]
        made = Histogram(bounds, tuple(float(count) for count in np.diff([0, *cumulated])), float(seen.sum()))
        for share in (0.5, 0.9, 0.95, 0.99):
            true = seen[max(0, math.ceil(share * len(seen)) - 1)]
            middle, low, high = made.quantile(share)
            assert low <= true <= high
            assert low <= middle <= high
        for target in (0.1, 0.3, 1.0, 3.0, 7.0):
            low, high = made.within(target)
            assert low <= (seen <= target).mean() <= high
        assert made.within(1.0)[0] == made.within(1.0)[1] == (seen <= 1.0).mean()


def test_interpolation_is_that_of_promql() -> None:
    """90 of 100 up to 0.5, the rest up to 1: the 95th is in the middle of the second bucket."""
    made = Histogram((0.5, 1.0, math.inf), (90.0, 10.0, 0.0))

    assert made.quantile(0.95) == (0.75, 0.5, 1.0)
    assert made.quantile(0.45)[0] == pytest.approx(0.25)
    assert Histogram((0.5, math.inf), (1.0, 1.0)).quantile(0.99) == (0.5, 0.5, math.inf)
    assert math.isnan(Histogram((0.5, math.inf), (0.0, 0.0)).quantile(0.5)[0])


VLLM = b"""# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="llama"} %d
vllm:request_success_total{engine="0",finished_reason="length",model_name="llama"} 100.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="llama"} 7.0
vllm:request_success_total{engine="0",finished_reason="error",model_name="llama"} 1.0
vllm:num_requests_waiting{engine="0",model_name="llama"} 3.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.5",model_name="llama"} 500.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="1.0",model_name="llama"} 900.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="llama"} 1000.0
vllm:e2e_request_latency_seconds_count{engine="0",model_name="llama"} 1000.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="llama"} 620.0
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1000.0
http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 10.0
http_requests_total{handler="/metrics",method="GET",status="5xx"} 99.0
"""


def test_vllms_page_gives_success_and_latency_of_its_model() -> None:
    """Server errors count, also those that the engine never saw; what clients gave up is in neither."""
    row = objectives({"r0": VLLM % 900}, target=1.0).iloc[0]

    assert (row["server"], row["tenant"]) == ("vllm", "llama")
    assert (row["success"], row["failure"], row["cancelled"], row["waiting"]) == (1000, 10, 7, 3)
    assert row["ratio"] == pytest.approx(1000 / 1010)
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
    assert (row["within_low"], row["within_high"]) == (0.9, 0.9)
    assert (row["p50"], row["p99_low"]) == (0.5, 1.0)
    assert row["mean"] == pytest.approx(0.62)
    assert row["missing"] == ""


def test_a_window_counts_what_came_in_it_over_all_replicas() -> None:
    """Counters are differences; a replica that began anew counts from zero, and is told."""
    before = {"r0": VLLM % 800, "r1": VLLM % 50_000}
    after = {"r0": VLLM % 900, "r1": VLLM % 20}

    row = objectives(after, before).iloc[0]

    assert row["success"] == 100 + (20 + 100)
    assert row["restarted"] == 1
    assert objectives({"r0": VLLM % 900}, {"r0": VLLM % 800}).iloc[0]["failure"] == 0


def test_sglang_tgi_and_triton_are_read_by_the_same_table() -> None:
    """Each tells what it tells; what it does not is named, not zero."""
    pages = {
        "s": b'sglang:num_requests_total{model_name="q"} 40\nsglang:num_aborted_requests_total{model_name="q"} 2\nsglang:num_queue_reqs{model_name="q"} 1\n'
        b'sglang:e2e_request_latency_seconds_bucket{le="1.0",model_name="q"} 30\nsglang:e2e_request_latency_seconds_bucket{le="+Inf",model_name="q"} 40\n',
        "t": b'tgi_request_success 90\ntgi_request_failure{err="overloaded"} 5\ntgi_request_failure{err="validation"} 50\ntgi_request_failure{err="dropped"} 4\n'
        b'tgi_request_duration_bucket{le="2"} 90\ntgi_request_duration_bucket{le="+Inf"} 90\ntgi_queue_size 6\n',
        "n": b'nv_inference_request_success{model="resnet",version="1"} 300\nnv_inference_request_failure{model="resnet",reason="BACKEND",version="1"} 3\n'
        b'nv_inference_request_failure{model="resnet",reason="CANCELED",version="1"} 8\nnv_inference_request_duration_us{model="resnet",version="1"} 6000000\n',
    }

    rows = objectives(pages).set_index("server")

    assert (rows.loc["sglang", "success"], rows.loc["sglang", "failure"], rows.loc["sglang", "waiting"]) == (40, 2, 1)
    assert (rows.loc["tgi", "success"], rows.loc["tgi", "failure"], rows.loc["tgi", "cancelled"]) == (90, 5, 4)
    assert rows.loc["tgi", "tenant"] == "t"
    assert (rows.loc["triton", "success"], rows.loc["triton", "failure"], rows.loc["triton", "cancelled"]) == (300, 3, 8)
    assert rows.loc["triton", "mean"] == pytest.approx(0.02)
    assert rows.loc["triton", "missing"] == "latency"


def test_a_page_without_requests_gives_no_tenant() -> None:
    """Other pages and empty ones are no service that never fails."""
    assert objectives({"x": b"up 1\n", "y": b"", "z": b'http_requests_total{handler="/v1/completions",status="5xx"} 4\n'}).empty
    known = objectives({"x": b'vllm:e2e_request_latency_seconds_bucket{le="+Inf",model_name="m"} 5\n'}).iloc[0]
    assert known["missing"] == "success, failure"
    assert known["ratio"] is None


def test_a_replicas_failure_is_triaged_like_a_ranks(tmp_path: Path) -> None:
    """A folder with the server's log and the kernel's: the GPU is blamed, and not the server."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "kernel").mkdir()
    (tmp_path / "logs" / "server.log").write_text(
        "INFO 05-04 10:00:01 [api_server.py:1289] vLLM API server version 0.9.1\n"
        "INFO 05-04 10:02:00 [loggers.py:111] Engine 000: Avg prompt throughput: 120.1 tokens/s, Avg generation throughput: 900.2 tokens/s, Running: 12 reqs\n"
        "(VllmWorker rank=1 pid=4321) ERROR 05-04 10:05:01 [multiproc_executor.py:527] RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        "ERROR 05-04 10:05:02 [core.py:515] EngineCore encountered a fatal error.\n"
        "ERROR 05-04 10:05:02 [async_llm.py:408] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n",
        encoding="utf-8",
    )
    (tmp_path / "kernel" / "inf-7.log").write_text(
        "2026-05-04T10:05:00.100000+00:00 inf-7 kernel: NVRM: Xid (PCI:0000:3b:00): 95, pid=4321, name=VLLM::Worker, Uncontained ECC error\n",
        encoding="utf-8",
    )

    verdict = load(tmp_path).triage()

    assert verdict.cls == "hardware/gpu-memory"
    assert verdict.node == "inf-7"
    assert verdict.gpu is not None
