"""Reads the records of the stations in ``project/``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ACKS: dict[str, dict[str, int]] = {
    "conformance": {
        **dict.fromkeys(("paired", "loosened", "forgotten", "raised", "reliable", "ids", "chain", "batched"), 12),
        "ticklessly": 12,
        "rows": 60,
        "throttled": 60,
        "few": 24,
    },
    "direct": {"directed": 24, "values": 19},
    "chunked": dict.fromkeys(("pieces", "mixed", "divided", "spoilt", "heaped", "unhurried"), 6),
}
"""How many acks each spout waits for, by topology."""
TICKS_MIN = 3
LATER_S = 1.0
"""What should not come gets so long after everything else has."""


def acks(seen: Path, wanted: dict[str, int]) -> dict[str, int]:
    """Return how many acks each of these spouts has heard, those that are enough as exactly that."""
    evidence = Evidence(seen)
    known = evidence.components()
    heard = {name: len(evidence.notes(name, "ack")) if name in known else 0 for name in wanted}
    return {name: min(count, wanted[name]) for name, count in heard.items()}


def has_ticked(seen: Path) -> bool:
    """Return whether the bolt that asks for ticks has had enough of them."""
    evidence = Evidence(seen)
    return "chained" in evidence.components() and len(evidence.notes("chained", "tick")) >= TICKS_MIN


class Evidence:
    def __init__(self, folder: Path) -> None:
        self._notes: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for path in sorted(folder.glob("*.jsonl")):
            component, _, task = path.stem.rpartition("-")
            whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")  # the last line may be half written
            lines = [json.loads(line) for line in whole.split("\n") if line]
            self._notes.setdefault(component, {})[int(task)] = lines

    def components(self) -> dict[str, set[int]]:
        return {name: set(tasks) for name, tasks in self._notes.items()}

    def notes(self, component: str, what: str, task: int | None = None) -> list[dict[str, Any]]:
        """Return the notes of one kind, of one task or of all in the order of their ids."""
        tasks = self._notes[component]
        chosen = tasks if task is None else {task: tasks[task]}
        return [note for _, lines in sorted(chosen.items()) for note in lines if note["what"] == what]

    def notes_of(self, component: str) -> list[dict[str, Any]]:
        """Return all notes of a component that has one task."""
        (lines,) = self._notes[component].values()
        return lines

    def all_notes(self) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
        for component, tasks in self._notes.items():
            for task, lines in tasks.items():
                yield component, task, lines

    def numbers(self, component: str, task: int | None = None) -> Counter[int]:
        return Counter(note["values"][0] for note in self.notes(component, "got", task))

    def ids(self, component: str, what: str, task: int | None = None) -> Counter[Any]:
        """Return how often a spout heard ``what`` of each id."""
        return Counter(note["id"] for note in self.notes(component, what, task))
