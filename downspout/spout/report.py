"""The metrics of a spout at one moment; their names are in ``downspout.metrics``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from downspout.formatting import counted
from downspout.spout.group.group_session import GroupSession
from downspout.spout.partition import Partition
from downspout.spout.spout_metrics import SpoutMetrics


def summarise(metrics: SpoutMetrics, session: GroupSession | None, now: int) -> dict[str, float]:
    """Return counters and gauges, the lag only once all partitions have started. Asks no broker."""
    counters = {name: float(getattr(metrics, name)) for name in SpoutMetrics.__slots__}
    times: dict[str, float] = {}
    if session is not None:
        fetches = session.consumer.fetches
        counters["fetches"] += fetches.calls
        counters["fetched"] += fetches.records
        times = {"fetch_mean_s": fetches.mean_s(now / 1000), "fetch_max_s": fetches.max_s(now / 1000)}
    parts = session.parts if session is not None else []
    oldest = 0
    for part in parts:
        if (since := part.ledger.emitted_at(part.ledger.commit_point())) is not None:
            oldest = max(oldest, now - since)
    lag = _lag(session) if session is not None else None
    return (
        counters
        | times
        | ({} if lag is None else {"lag": float(lag)})
        | {
            "in_flight": float(sum(part.ledger.in_flight for part in parts)),
            "retry_waiting": float(sum(part.ledger.failed for part in parts)),
            "committed": float(sum(max(part.commits.offset, 0) for part in parts)),
            "partitions": float(len(parts)),
            "assigned": float(session is not None and session.assignment.complete),
            "disconnected": float(session is not None and not session.consumer.connected()),
            "oldest_pending_s": oldest / 1000,
        }
    )


def final_gauges(session: GroupSession, now: int) -> dict[str, float]:
    """Return what remains true of a member that is about to leave: how far it came in the partitions that it had."""
    gauges = summarise(SpoutMetrics(), session, now)
    return {name: gauges[name] for name in ("lag", "committed", "partitions") if name in gauges}


class Explains(Protocol):
    """Knows what helps a record that blocks; :class:`~downspout.spout.stalls.Why` does."""

    def cure(self, part: Partition, offset: int) -> str:
        """Return what may help."""


def by_partition(session: GroupSession | None, now: int, explains: Explains | None = None) -> dict[str, dict[str, Any]]:
    """Return where the group stands in each partition that is owned; ``downspout.metrics`` explains the names.

    Asks no broker. O(log h) for each partition; of one that is blocked by a record that is out, O(open trees).
    """
    if session is None:
        return {}
    return {part.place(): _figures(part, end, now, explains) for part, end in _ends(session).items()}


def total_of(partitions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of partitions; no lag where that of one is not known.

    >>> total_of([{"lag": 3, "done": 1}, {"lag": None, "done": 2}])
    {'lag': None, 'done': 3, 'uncommitted': 0, 'in_flight': 0, 'failed': 0}
    """
    rows = list(partitions)
    lags = [row["lag"] for row in rows if row.get("lag") is not None]
    sums = {name: sum(row.get(name) or 0 for row in rows) for name in ("done", "uncommitted", "in_flight", "failed")}
    return {"lag": sum(lags) if lags and len(lags) == len(rows) else None} | sums


def _figures(part: Partition, end: int, now: int, explains: Explains | None) -> dict[str, Any]:
    ledger = part.ledger
    point = ledger.commit_point()
    done = ledger.done_beyond_commit
    is_held = bool(done or ledger.failed or part.exhausted) and ledger.pending
    last = part.last_failures.get(point) if is_held else None
    failure = last.failure if last is not None else None
    return {
        "committed": part.commits.offset if part.commits.offset >= 0 else None,
        "position": part.cursor.reading,
        "end": end,
        "lag": _lag_of(part, end),
        "done": done,
        "uncommitted": ledger.outstanding,
        "in_flight": ledger.in_flight,
        "failed": ledger.failed,
        "blocks": point if is_held else None,
        "why": _why(part, point, now) if is_held else "",
        "error": (failure.error or failure.kind) if failure is not None else "",
        "cure": explains.cure(part, point) if is_held and explains is not None else "",
    }


def _why(part: Partition, point: int, now: int) -> str:
    """Say what the offset waits for that holds a commit back; the stall report knows more, and asks for it."""
    if point in part.exhausted:
        return "failed for good, its dead letter is not written yet"
    retry, emitted_at = part.ledger.retry_state(point), part.ledger.emitted_at(point)
    failed = f"failed {counted(retry.failures, 'time')}, " if retry is not None and retry.failures else ""
    if emitted_at is not None:
        return f"{failed}out for {max(0, now - emitted_at) / 1000:.0f} s"
    return f"{failed}waits for another try" if retry is not None else "not read yet"


def _lag_of(part: Partition, end: int) -> int:
    """Return how far a partition's commit is behind."""
    # Behind the last record there may be markers, which the reader passes without a trace in the ledger.
    return max(0, end - max(part.ledger.commit_point(), part.commits.offset))


def _lag(session: GroupSession) -> int | None:
    """Return how far the commits are behind; None before an assignment has arrived and all of it has started."""
    if not session.assignment.complete:
        return None
    return sum(_lag_of(part, end) for part, end in _ends(session).items())


def _ends(session: GroupSession) -> dict[Partition, int]:
    """Return where each partition's log ends, as of its last fetch, or of its start where none was.

    The assignment is a copy, so one look at it.
    """
    consumer, assigned = session.consumer, session.consumer.assignment()
    for part in (parts := session.parts):
        if part.tp in assigned and (end := consumer.highwater(part.tp)) is not None:
            part.log_end = end
    return {part: part.log_end for part in parts}
