"""A verdict's JSON is what docs/reference/verdict.md promises, whatever a log wrote into it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workbench.model import Event, Gpu, Verdict
from workbench.report.redact import redact
from workbench.report.verdict_json import dumps, failed, to_json

FIELDS = {
    "schema", "cause", "class", "confidence", "summary", "culprit", "time", "attempt", "evidence", "degraded", "victims",
    "counter_evidence", "hypotheses", "coverage", "retry", "remediation", "next_steps", "decided_by",
}  # fmt: skip


class TestFields:
    def test_promised_fields_are_there_even_when_nothing_is_known(self) -> None:
        """Fields may be added, never left out: a reader needs no `.get`."""
        bare = to_json(Verdict("unknown", 0.0, "nothing decides"))

        assert set(bare) >= FIELDS
        assert bare["culprit"] == {"node": None, "gpu": None, "rank": None, "at_fault": None}
        assert bare["schema"] == "workbench.verdict/1"

    def test_times_are_utc_with_milliseconds(self, document: dict[str, Any]) -> None:
        """Epoch seconds become ISO 8601 with exactly three digits and Z."""
        assert document["time"] == "2026-05-04T11:02:03.120Z"
        assert document["evidence"][0]["last"] == "2026-05-04T11:02:05.120Z"
        assert document["degraded"][0]["since"] == "2026-05-04T10:52:03.120Z"

    def test_a_class_gives_its_cause(self, document: dict[str, Any]) -> None:
        """`cause` is the part of the class before the slash."""
        assert (document["cause"], document["class"]) == ("hardware", "hardware/gpu-memory")

    def test_evidence_keeps_the_line_as_it_was(self, document: dict[str, Any], verdict: Verdict) -> None:
        """No cleaning in JSON: machines get what the log holds."""
        first = document["evidence"][0]

        assert first["text"] == verdict.evidence_records[0].text
        assert (first["file"], first["line"], first["gpu"]["pci"]) == ("kernel/gpu-node-017.log", 812, "0000:3b:00.0")

    def test_repeats_are_counted_and_single_events_are_not(self, document: dict[str, Any]) -> None:
        """`count` appears where several observations were coalesced."""
        assert document["evidence"][0]["count"] == 3
        assert "count" not in document["evidence"][1]


class TestBadValues:
    @pytest.mark.parametrize("time", [float("nan"), float("inf"), -1.0, 1e18])
    def test_an_impossible_time_is_null(self, time: float) -> None:
        """A time that has no ISO form is missing, not an error."""
        assert to_json(Verdict("unknown", 0.0, "", time=time))["time"] is None

    def test_numpy_and_nan_values_become_plain_json(self) -> None:
        """Values that came out of frames are no reason to fail."""
        numpy = pytest.importorskip("numpy")
        verdict = Verdict(
            "none", float("nan"), "", rank=numpy.int64(3), degraded=[{"slowdown": numpy.float64("nan"), "gpu": Gpu(1)}]
        )

        document = json.loads(dumps(to_json(verdict)))

        assert document["culprit"]["rank"] == 3
        assert document["confidence"] is None
        assert document["degraded"][0]["slowdown"] is None
        assert document["degraded"][0]["gpu"] == {"index": 1, "uuid": None, "pci": None}

    def test_output_is_one_line_of_ascii(self) -> None:
        """Line separators, escapes and lone surrogates cannot break a JSON Lines stream or drive a terminal."""
        text = dumps(to_json(Verdict("unknown", 0.0, "", evidence_records=[Event("x", "job", "a\n\u2028\x1b[2J\udc80é")])))

        assert text.isascii()
        assert text.isprintable()
        assert json.loads(text)["evidence"][0]["text"] == "a\n\u2028\x1b[2J\udc80é"


class TestFailed:
    def test_what_could_not_be_read_is_unknown_and_blind(self) -> None:
        """Fail closed: not read is never `none`, and every class could be hidden in it."""
        document = failed("folder", "permission denied", hint="run as root")

        assert document["class"] == "unknown"
        assert document["coverage"][0]["status"] == "failed"
        assert "hardware/gpu-lost" in document["coverage"][0]["blind_to"]
        assert document["next_steps"] == ["run as root"]


class TestRedaction:
    def test_a_listed_name_leaves_no_trace(self, verdict: Verdict) -> None:
        """Names are replaced in values and keys alike, the same one by the same pseudonym."""
        text = dumps(to_json(verdict, name="gpu-node-017", redact=redact(["gpu-node-017"])))

        assert "gpu-node-017" not in text
        assert json.loads(text)["culprit"]["node"] == json.loads(text)["evidence"][0]["node"] == "[name-1]"

    def test_a_name_inside_a_longer_one_stays(self) -> None:
        """`node-1` is not `node-17`."""
        assert redact(["node-1"])("node-17 and NODE-1.") == "node-17 and [name-1]."

    def test_words_of_the_schema_are_never_redacted(self, verdict: Verdict) -> None:
        """A site that lists `hardware` as a project's name still gets a readable verdict."""
        assert to_json(verdict, redact=redact(["hardware"]))["class"] == "hardware/gpu-memory"

    @pytest.mark.parametrize(
        "line",
        [
            "export WANDB_API_KEY=0123456789abcdef0123",
            "Authorization: Bearer abcdefghijklmnopqrstuvwxyz",
            "postgres://bob:hunter2secret@db/x",
            "token hf_abcdefghijklmnopqrstuvwx in use",
            "key AKIAABCDEFGHIJKLMNOP",
            '{"password": "hunter2secret"}',
        ],
    )
    def test_secrets_are_blanked_without_being_listed(self, line: str) -> None:
        """What looks like a credential never leaves."""
        hidden = redact()(line)

        assert hidden != line
        for secret in ("0123456789abcdef0123", "hunter2secret", "hf_abcdefghij", "AKIAABCDEF", "abcdefghijklmnopqrstuvwxyz"):
            assert secret not in hidden
