"""The timeline of a run: rebalances, restarts, retries, timeouts and the like, from changes between two snapshots."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from downspout.formatting import counted
from downspout.run.run_snapshots import RunMetrics

EVENTS_MAX = 200
TOGETHER_S = 30.0  # Events of one kind and component within this time are counted as one
PLACES_SHOWN = 4
COUNTERS = {
    "unclean": ("unclean start", "the last owner of a partition did not shut down cleanly"),
    "retries": ("retry", "tuples were emitted again"),
    "timeouts": ("timeout", "attempts timed out"),
    "splits": ("split", "chunks are tried again in halves"),
    "dead_lettered": ("dead letter", "records failed for good"),
    "lost": ("lost", "offsets were gone from Kafka before they were processed"),
    "left_behind": ("left behind", "offsets lay too far behind (kafka.behind_max)"),
    "unreadable": ("unreadable", "offsets could not be read"),
    "transactions_aborted": ("transaction aborted", "their records come again"),
    "transactions_fenced": ("transaction fenced", "another producer had their id, or they took too long"),
}
"""By counter of a report: the kind and the text of its event."""


@dataclass
class Event:
    """An event that happened once or several times."""

    kind: str
    component: str  # or worker
    text: str
    first_s: float  # seconds since the epoch
    last_s: float
    count: float = 1

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "kind": self.kind,
            "component": self.component,
            "text": self.text,
            "first_ms": round(self.first_s * 1000),
            "last_ms": round(self.last_s * 1000),
            "count": int(self.count),
        }


class Events:
    """Finds events by comparing each snapshot with the previous one."""

    def __init__(self) -> None:
        self._found: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._counters: dict[tuple[str, str], float] = {}
        self._owned: dict[str, dict[str, str]] = {}
        self._assigned: set[str] = set()  # spouts that have had partitions
        self._deaths: dict[int, tuple[int, int | None]] = {}

    def newest_first(self) -> list[dict[str, Any]]:
        """Return the events of the run as JSON values, newest first."""
        return [event.as_dict() for event in sorted(self._found, key=lambda event: -event.last_s)]

    def look(self, wall_s: float, metrics: RunMetrics) -> None:
        """Add a run's metrics."""
        result = metrics.result
        for name, report in result.reports.items():
            for counter, (kind, text) in COUNTERS.items():
                if counter in report:
                    self._grown(wall_s, kind, name, counter, report[counter], text)
        for name, counts in result.components.items():
            self._grown(wall_s, "restart", name, "restarts", counts.restarts, "the component raised and was made again")
        for spout, partitions in result.partitions.items():
            self._rebalanced(wall_s, spout, {place: str(each.get("owner") or "") for place, each in partitions.items()})
        for worker in result.workers:
            self._worker(wall_s, worker.number, worker.restarts, worker.pid, [*worker.deaths])

    def _grown(self, wall_s: float, kind: str, component: str, counter: str, now: float, text: str) -> None:
        grown = now - self._counters.get((component, counter), 0.0)
        self._counters[component, counter] = now
        if grown <= 0:
            return
        for event in reversed(self._found):
            if (event.kind, event.component) == (kind, component):
                if wall_s - event.last_s <= TOGETHER_S:
                    event.count, event.last_s = event.count + grown, wall_s
                    return
                break
        self._found.append(Event(kind, component, text, wall_s, wall_s, grown))

    def _rebalanced(self, wall_s: float, spout: str, owned: dict[str, str]) -> None:
        before = self._owned.get(spout)
        self._owned[spout] = owned
        if before == owned or not (before or owned):
            return
        gained = [place for place in owned if place not in (before or ())]
        lost = [place for place in before or () if place not in owned]
        moved = [place for place, owner in owned.items() if (before or {}).get(place) not in ("", None, owner)]
        words = [("got", gained), ("lost", lost), ("moved", moved)]
        text = "; ".join(f"{word} {_places(places)}" for word, places in words if places)
        if not text:  # only an owner has become known
            return
        kind = "rebalance" if spout in self._assigned else "assignment"
        self._assigned.add(spout)
        self._found.append(Event(kind, spout, text, wall_s, wall_s))

    def _worker(self, wall_s: float, number: int, restarts: int, pid: int | None, deaths: list[str]) -> None:
        before = self._deaths.get(number)
        self._deaths[number] = (restarts, pid)
        if before is not None and restarts > before[0]:
            text = deaths[-1] if deaths else "it was restarted"
            self._found.append(Event("worker", f"worker {number}", text, wall_s, wall_s, restarts - before[0]))


def _places(places: list[str]) -> str:
    """Name some partitions and count the others.

    >>> _places(["a[0]"]), _places([f"a[{number}]" for number in range(9)])
    ('a[0]', 'a[0], a[1], a[2], a[3] and 5 more partitions')
    """
    more = len(places) - PLACES_SHOWN
    return ", ".join(places[:PLACES_SHOWN]) + (f" and {counted(more, 'more partition')}" if more > 0 else "")
