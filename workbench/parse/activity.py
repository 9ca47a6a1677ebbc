"""Turn the moments of a log's lines, where there are many, into counts per speaker and piece of time: of bounded size."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import Any

__all__ = ["MOST_PIECES", "Tally"]

_BITS = 9
MOST_PIECES = 1 << _BITS  # between the first and the last moment of a log
_FINEST = 3  # pieces a second at most, as a power of two
_MOST_WAITING = 65_536  # lines that wait to be counted: counting many at once costs half of counting each
_MOST_CELLS = 262_144  # of all speakers of a log together
_MOST_HOLES = 256


class Tally:
    """
    Counts lines, and keeps the last step, per speaker and piece of time.

    Pieces are as long as a power of two of seconds and begin at whole multiples of it, so that the counts of many logs add up without
    being divided. A speaker is whatever the caller tells speakers apart by.
    """

    __slots__ = ("_cells", "_moments", "_power", "_room", "_steps", "_time", "_unseen", "_waiting", "holes", "no")

    def __init__(self) -> None:
        self._moments: dict[Hashable, list[float]] = {}  # of lines that wait, by speaker
        self._steps: dict[Hashable, dict[int, int]] = {}  # position among these → step
        self._waiting = 0
        self._power = _FINEST  # there are two to this power pieces in a second
        self._cells: dict[Hashable, dict[int, list[int]]] = {}  # speaker → piece → [lines, last step or -1]
        self._room = _MOST_CELLS
        self.holes: list[tuple[float, float, int]] = []  # from, to, lines in between that nobody looked at
        self.no = 0  # of the last line that was looked at
        self._unseen = 0
        self._time: float | None = None

    def look(self, no: int) -> None:
        """Note that a line was looked at; a jump of the numbers shows what was left out."""
        if no > self.no + 1:
            self._unseen += no - self.no - 1
        self.no = no

    def line(self, speaker: Hashable, moment: float) -> None:
        """Count one line of a speaker with a stamp of its own (seconds since the epoch)."""
        if self._unseen:
            self._hole(moment)
        if self._waiting >= _MOST_WAITING:
            self._count()
        self._time = moment
        row = self._moments.get(speaker)
        if row is None:
            row = self._moments[speaker] = []
        row.append(moment)
        self._waiting += 1

    def step(self, speaker: Hashable, step: int) -> None:
        """Note the step that the speaker's line told which `line` counted last."""
        row = self._moments.get(speaker)
        if row and 0 <= step < 1 << 53:
            self._steps.setdefault(speaker, {})[len(row) - 1] = step

    def _hole(self, moment: float) -> None:
        before, lines, self._unseen = self._time, self._unseen, 0
        if before is None or moment <= before:
            return
        self.holes.append((before, moment, lines))
        if len(self.holes) > _MOST_HOLES:  # two neighbours become one: what lies between them is as good as not seen
            last = self.holes[len(self.holes) // 2 * 2 :]
            pairs = zip(self.holes[::2], self.holes[1::2], strict=False)
            self.holes = [(one[0], max(one[1], other[1]), one[2] + other[2]) for one, other in pairs] + last

    def _count(self) -> None:
        """Put the lines that wait into pieces, as long as it takes for all of them to be few."""
        waiting, steps = self._moments, self._steps
        self._moments, self._steps, self._waiting = {}, {}, 0
        power, size = self._power, 2.0**self._power
        spans = [(int(min(row) * size), int(max(row) * size)) for row in waiting.values() if row]
        spans += [(min(row), max(row)) for row in self._cells.values() if row]
        if not spans:
            return
        low, high = min(first for first, _ in spans), max(last for _, last in spans)
        while high - low >= MOST_PIECES:
            low, high, power = low >> 1, high >> 1, power - 1
        self._coarsen(self._power - power)
        size = 2.0**power
        for speaker, row in waiting.items():
            cells = self._cells.setdefault(speaker, {})
            told = steps.get(speaker)
            for place, moment in enumerate(row):
                at = int(moment * size)
                cell = cells.get(at)
                if cell is None:
                    cell = cells[at] = [1, -1]
                else:
                    cell[0] += 1
                if told and place in told:
                    cell[1] = told[place]
        many = sum(map(len, self._cells.values()))
        while many > self._room:
            self._coarsen(1)
            before, many = many, sum(map(len, self._cells.values()))
            if many > 0.9 * before:  # there are nearly as many speakers as cells: longer pieces merge nothing
                self._room = 2 * many

    def _coarsen(self, times: int) -> None:
        """Make pieces `times` times twice as long."""
        self._power -= times
        for speaker, row in self._cells.items() if times else ():
            merged: dict[int, list[int]] = {}
            for at, (lines, step) in row.items():  # in reading order: the later step stays
                cell = merged.get(at >> times)
                if cell is None:
                    merged[at >> times] = [lines, step]
                else:
                    cell[0] += lines
                    cell[1] = step if step >= 0 else cell[1]
            self._cells[speaker] = merged

    def facts(self) -> dict[str, Any]:
        """
        Return what was counted.

        Returns
        -------
        dict
            ``lines``: speaker → (moments of its lines, step told by each or -1), two arrays, of a log with few lines. Of one with more
            ``rows``: speaker → (number of the piece since the epoch, lines in it, last step told in it or -1), three arrays of 64-bit
            numbers in order of time, and ``seconds``: length of a piece. ``holes``: (from, to, lines in between that were not looked at).
        """
        if not self._cells:
            lines = {}
            for speaker, moments in self._moments.items():
                told = self._steps.get(speaker)
                steps = array("q", [-1]) * len(moments)
                for place, step in told.items() if told else ():
                    steps[place] = step
                lines[speaker] = (array("d", moments), steps)
            return {"seconds": 0.0, "lines": lines, "rows": {}, "holes": self.holes}
        self._count()
        rows = {}
        for speaker, row in self._cells.items():
            order = sorted(row)
            cells = [row[at] for at in order]
            rows[speaker] = (array("q", order), array("q", [cell[0] for cell in cells]), array("q", [cell[1] for cell in cells]))
        return {"seconds": 2.0**-self._power, "lines": {}, "rows": rows, "holes": self.holes}
