"""The texts of the first stage are exchanged for ones that let less of ordinary logs through, and still find all."""

from __future__ import annotations

import re

from workbench.catalog import scan_patterns
from workbench.parse import gate as stage
from workbench.parse.gate_fit import GROUPS, Try, fitted, groups
from workbench.parse.ordinary import ORDINARY

LOGS = [ORDINARY.encode()]


def _one_of(*texts: str) -> list[frozenset[frozenset[bytes]]]:
    return [frozenset([frozenset(text.encode() for text in texts)])]


def test_each_choice_stays_met_and_less_is_let_through() -> None:
    words = sorted(set(re.findall(r"[a-z ]{8}", " ".join(pattern.lower() for _, pattern in scan_patterns()))))
    pairs = list(zip(words[::2], words[1::2], strict=False))  # a last word without another is nobody's choice
    choices = [_one_of(one, other) for one, other in pairs]
    chosen = {one.encode() for one, _ in pairs}
    found = fitted(chosen, choices, stage.PACE, LOGS, 6)
    trial = Try(LOGS)
    trial.take({*chosen, stage.PACE})
    before = trial.passes()
    trial.take({*found, stage.PACE})
    assert trial.passes() < before
    assert all(any(not found.isdisjoint(text) for need in needs for text in need) for needs in choices)


def test_texts_of_one_length_and_end_share_a_group() -> None:
    texts = [b"%s%s" % (head, tail) for head in (b"aaa", b"bbb", b"ccc", b"ddd") for tail in (b"xx", b"yyy", b"zzzz")]
    shared = groups([*texts, b"a long text of which eight count"])
    assert sorted(text for group in shared for text in group) == sorted([*texts, b"ht count"])
    assert len(shared) <= GROUPS
    assert all(len(group[0]) <= len(group[-1]) for group in shared)
