"""What a spout reports: metrics, and partitions that are stuck, with the reason.

**Metrics** are explained in ``downspout.metrics``.

**Stalls.** A partition that makes no progress is reported once, with the offset that blocks it and the reason, if
known. The time limit is twice the session timeout: within that, whatever was lost with a process or a broker should be
on its way again. It is two thirds of the message timeout if that is longer: a sink may hold records for a third of it.
A partition that no member was assigned is invisible to all of them; a task without partitions warns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from downspout.formatting import counted
from downspout.kafka.port import Fetches, TopicPartition
from downspout.kafka.retry_gate import RetryGate
from downspout.ledger.breaker import PartitionProgress, StallReport
from downspout.outages import CURES, OUTAGES, SILENT, Outage
from downspout.spout.partition import LastFailure, Partition
from downspout.spout.ports import SpoutMetrics
from downspout.spout.rebalancing import GroupSession, SessionState
from downspout.spout.settings import Setup


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
    """Return the gauges that stay valid when a member leaves: its progress in its partitions."""
    gauges = summarise(SpoutMetrics(), session, now)
    return {name: gauges[name] for name in ("lag", "committed", "partitions") if name in gauges}


ADDED = ("log_records", "done", "uncommitted", "in_flight", "failed", "fetches", "fetched")
"""The figures that can be summed over partitions."""


def by_partition(
    session: GroupSession | None, now: int, wall_s: float, reason: StallReason | None = None
) -> dict[str, dict[str, Any]]:
    """Return the group's position in each owned partition; ``downspout.metrics`` explains the names.

    Asks no broker. O(log h) for each partition; of one that is blocked by a record that is out, O(open trees).
    """
    if session is None:
        return {}
    ends, fetches = _ends(session), session.consumer.fetches.by_partition
    return {
        part.place(): _log_figures(part, end, fetches.get(part.tp), now / 1000, wall_s) | _figures(part, now, reason)
        for part, end in ends.items()
    }


def _log_figures(part: Partition, end: int, fetches: Fetches | None, now_s: float, wall_s: float) -> dict[str, Any]:
    if fetches is not None and fetches.begin is not None:
        part.log_begin = fetches.begin
    committed = part.commits.offset if part.commits.offset >= 0 else None
    found = log_figures(committed, part.log_begin, end) | fetch_figures(fetches, now_s)
    lag, first_ms = _lag_of(part, end), part.first_record[1]
    next_ms = part.cursor.times.at(part.ledger.commit_point()) if lag else None  # of the next record to be committed
    return found | {
        "lag": lag,
        "lag_s": 0.0 if not lag else None if next_ms is None else max(0.0, wall_s - next_ms / 1000),
        "retention_s": None if next_ms is None or first_ms is None else (next_ms - first_ms) / 1000,
    }


def log_figures(committed: int | None, begin: int, end: int) -> dict[str, Any]:
    """Return the figures derived from a log's bounds and the committed offset.

    >>> log_figures(70, 50, 90)
    {'committed': 70, 'begin': 50, 'end': 90, 'lag': 20, 'log_records': 40, 'retention_records': 20}
    """
    return {
        "committed": committed,
        "begin": begin,
        "end": end,
        "lag": None if committed is None else max(0, end - committed),
        "log_records": max(0, end - begin),
        "retention_records": None if committed is None else committed - begin,
    }


def fetch_figures(fetches: Fetches | None, now_s: float) -> dict[str, Any]:
    """Return what was fetched of a partition; None: nothing yet."""
    found = fetches or Fetches()
    return {
        "fetches": found.calls,
        "fetched": found.records,
        "fetch_mean_s": found.mean_s(now_s),
        "fetch_max_s": found.max_s(now_s),
    }


def total_of(partitions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over partitions, and the longest lag in time; no lag if that of one is unknown.

    >>> found = total_of([{"lag": 3, "done": 1, "lag_s": 0.5}, {"lag": None, "done": 2, "lag_s": 7.0}])
    >>> found["partitions"], found["lag"], found["lag_s"], found["done"], found["failed"]
    (2, None, 7.0, 3, 0)
    """
    rows = list(partitions)
    lags = [row["lag"] for row in rows if row.get("lag") is not None]
    longest = max((row["lag_s"] for row in rows if row.get("lag_s") is not None), default=None)
    sums = {name: sum(row.get(name) or 0 for row in rows) for name in ADDED}
    return {
        "partitions": len(rows),
        "lag": sum(lags) if lags and len(lags) == len(rows) else None,
        "lag_s": longest,
        **sums,
    }


def totals_by_topic(partitions: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the sums of the partitions of each topic, given by their names.

    >>> {topic: sums["lag"] for topic, sums in totals_by_topic({"a[0]": {"lag": 3}, "a[1]": {"lag": 4}}).items()}
    {'a': 7}
    """
    by_topic: dict[str, list[Mapping[str, Any]]] = {}
    for place, figures in partitions.items():
        by_topic.setdefault(place.rpartition("[")[0], []).append(figures)
    return {topic: total_of(rows) for topic, rows in by_topic.items()}


def _figures(part: Partition, now: int, reason: StallReason | None) -> dict[str, Any]:
    ledger = part.ledger
    point = ledger.commit_point()
    done = ledger.done_beyond_commit
    is_held = bool(done or ledger.failed or part.exhausted) and ledger.pending
    last = part.last_failures.get(point) if is_held else None
    failure = last.failure if last is not None else None
    return {
        "position": part.cursor.reading,
        "emitted": ledger.next - 1 if ledger.next else None,
        "done": done,
        "uncommitted": ledger.outstanding,
        "in_flight": ledger.in_flight,
        "failed": ledger.failed,
        "blocks": point if is_held else None,
        "why": _why(part, point, now) if is_held else "",
        "error": (failure.error or failure.kind) if failure is not None else "",
        "cure": reason.of(part, point)[1] if is_held and reason is not None else "",
    }


def _why(part: Partition, point: int, now: int) -> str:
    """Describe what the offset that blocks a commit waits for; the stall report queries more details."""
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
    """Return each partition's log end, as of its last fetch or, without one, of its start.

    The assignment is a copy, so one look at it.
    """
    consumer, assigned = session.consumer, session.consumer.assignment()
    for part in (parts := session.parts):
        if part.tp in assigned and (end := consumer.highwater(part.tp)) is not None:
            part.log_end = end
    return {part: part.log_end for part in parts}


LOOK_MS = 1_000  # How often partitions are looked at
IN_VAIN = 3  # A partition that was polled alone this often without a record does not wait for the others
FASTER = "faster bolts, or more of them (downspout run --workers; on Storm: par)"
Whereabouts = Callable[[str], str]


def limit_ms(session_timeout_ms: int, message_timeout_ms: float) -> float:
    """Return how long a partition may stand still.

    >>> limit_ms(10_000, 30_000), limit_ms(10_000, 300_000), limit_ms(10_000, float("inf"))
    (20000, 200000.0, 20000)
    """
    held = 2 * message_timeout_ms / 3 if message_timeout_ms != float("inf") else 0
    return max(2 * session_timeout_ms, held)


class Stalls:
    """Watches the partitions of a spout."""

    def __init__(self, setup: Setup, gates: Sequence[RetryGate], log: logging.Logger, now: int) -> None:
        self._setup = setup
        self._gates = gates
        self._log = log
        self._limit_ms = limit_ms(setup.settings["session_timeout_ms"], setup.timeout_ms)
        self._due = now + LOOK_MS
        self._watched: dict[TopicPartition, PartitionProgress] = {}
        self._empty_since: int | None = None  # Since when no partition is ours
        self._said_empty = False

    def report(self, now: int) -> dict[str, float]:
        """Return gauges; ``downspout.metrics`` explains them."""
        watched = self._watched.values()
        return {
            "stuck": float(sum(progress.stuck for progress in watched)),
            "still_s": max((progress.still_ms(now) for progress in watched), default=0) / 1000,
        }

    def check(self, session: GroupSession, now: int, called_at: int, whereabouts: Whereabouts) -> None:
        """Check all partitions if a check is due, and warn.

        Args:
            called_at: when the spout was asked for tuples last.
        """
        if now < self._due:
            return
        self._due = now + LOOK_MS
        parts = session.assignment.parts
        assigned = session.consumer.assignment()
        self._check_share(session, bool(assigned | parts.keys()), now)
        self._watched = {
            tp: self._watched.get(tp) or PartitionProgress(self._limit_ms, now)
            for tp in sorted(assigned | parts.keys())
        }
        for tp, progress in self._watched.items():
            part = parts.get(tp)
            point = None if part is None else self._point(part, session)
            waits = part is None or self._waits(part, point or 0, session)
            report = progress.check(point, waits, now, None if part is None else _first_emit(part, point or 0))
            if report is not None:
                self._warn(tp, part, report, self.reason(session, now, called_at, whereabouts))

    def reason(self, session: GroupSession, now: int, called_at: int, whereabouts: Whereabouts) -> StallReason:
        """Return the StallReason that explains why any record waits, as of now; arguments as for :meth:`check`."""
        return StallReason(self._setup, self._error(), session, now, called_at, whereabouts)

    def _check_share(self, session: GroupSession, has_any: bool, now: int) -> None:
        """Warn once of a task that has had no partition for as long as a member that died could have kept one."""
        if has_any or session.state is not SessionState.RUNNING:
            self._empty_since, self._said_empty = None, self._said_empty and not has_any
        elif self._empty_since is None:
            self._empty_since = now
        elif now - self._empty_since >= self._setup.settings["session_timeout_ms"] and not self._said_empty:
            self._said_empty = True
            self._log.warning(
                "task %d of %d reads nothing: group %s has no partition of %s left for it. Try: no more tasks (par, or "
                "--workers) than there are partitions",
                self._setup.index + 1, self._setup.tasks, self._setup.group,
                ", ".join(self._setup.settings["topics"] or ()) or self._setup.settings["pattern"],
            )  # fmt: skip

    def _error(self) -> str:
        """Return the current error of the broker or the connection to it; empty if there is none."""
        return next((gate.last_error for gate in self._gates if gate.last_error), "")

    def _point(self, part: Partition, session: GroupSession) -> int:
        if self._setup.guarantee.tracks:
            return part.commit_point(session.consumer)
        return part.cursor.position(session.consumer)

    def _waits(self, part: Partition, point: int, session: GroupSession) -> bool:
        if part.cursor.has_waiting or part.ledger.pending:
            return True
        end = session.consumer.highwater(part.tp)
        if end is not None and part.cursor.stop is not None:
            end = min(end, part.cursor.stop)
        return end is not None and end > point

    def _warn(self, tp: TopicPartition, part: Partition | None, report: StallReport, why: StallReason) -> None:
        at = "" if report.offset is None else f"@{report.offset}"
        place, seconds = f"{tp.topic}[{tp.partition}]{at}", report.lasted_ms / 1000
        if not report.stuck:
            self._log.warning("%s: makes progress again, after %.0f s", place, seconds)
            return
        what, cure = why.of(part, report.offset or 0)
        self._log.warning("%s: makes no progress for %.0f s: %s. Try: %s", place, seconds, what, cure)


def _is_outage(last: LastFailure) -> bool:
    return last.failure is not None and last.failure.kind == "timeout"


def _first_emit(part: Partition, offset: int) -> int | None:
    return part.ledger.emitted_at(offset) if part.ledger.retry_state(offset) is None else None


class StallReason:
    """What a record, or a partition, waits for. The arguments are those of :class:`Stalls` and :meth:`Stalls.check`."""

    def __init__(
        self, setup: Setup, error: str, session: GroupSession, now: int, called_at: int, whereabouts: Whereabouts
    ) -> None:
        self._setup = setup
        self._error = error
        self._session = session
        self._now = now
        self._called_at = called_at
        self._whereabouts = whereabouts

    def of(self, part: Partition | None, offset: int) -> tuple[str, str]:
        """Return the reason and what may help."""
        if (away := self._away(part, offset)) is not None:
            return str(away), f"{away.cure}; nothing else needs to be done"
        if part is None:
            return "the start offset is not known yet", f"look at the broker: {self._error or 'its log'}"
        emitted_at, retry = part.ledger.emitted_at(offset), part.ledger.retry_state(offset)
        if emitted_at is not None:
            out, cure = self._out(part, offset, emitted_at)
            return (out, cure) if retry is None else self._retry(part.last_failures.get(offset), retry, out)
        if offset in part.exhausted:
            topic = self._setup.dead_letter_topic
            return f"it failed for good, but its dead letter is not written to {topic}", "look at that topic's settings"
        if retry is not None:
            return self._retry(part.last_failures.get(offset), retry)
        return self._unread(part)

    def _away(self, part: Partition | None, offset: int) -> Outage | None:
        """Return the outage that the partition may wait for, or None.

        A record that a bolt has failed waits for its next try. Once that is due, or its dead letter is, it waits for
        the spout, which waits for the outage.
        """
        told = [outage for outage in OUTAGES.current() if outage.said_at is not None]
        if not told or part is None or (last := part.last_failures.get(offset)) is None or _is_outage(last):
            return told[0] if told else None
        retry, is_out = part.ledger.retry_state(offset), part.ledger.emitted_at(offset) is not None
        is_due = offset in part.exhausted or (retry is not None and retry.ready_at <= self._now)
        return told[0] if is_due and not is_out else None

    def _out(self, part: Partition, offset: int, emitted_at: int) -> tuple[str, str]:
        bolts = self._whereabouts(part.tup_id(offset))
        *others, last = bolts.split(", ")
        where = f"; waiting in {', '.join(others)}{' and ' if others else ''}{last}" if bolts else ""
        seconds = (self._now - emitted_at) / 1000
        cure = f"a bolt must ack or fail each tuple: look at {bolts or 'the bolts and their logs'}"
        if (part.ledger.out_until(offset) or offset) > offset + 1:
            cure += f"; or smaller chunks, kafka.chunk_records_max (now {self._setup.settings['chunk_records_max']:,})"
        return f"not acked for {seconds:.0f} s{where}", cure

    def _retry(self, last: LastFailure | None, retry: Any, out: str = "") -> tuple[str, str]:
        failure = last.failure if last else None
        what, _, ours = failure.error.partition(". Try: ") if failure else ("", "", "")
        error = f", last with {what or failure.kind}" if failure else ""
        left = (retry.ready_at - self._now) / 1000
        when = (
            f"its retry is due in {left:.0f} s" if left > 0 else "its retry is due, but it has not been read again yet"
        )
        when = f"its retry is {out}" if out else when
        cure = "repair the bolt, or fewer tries: kafka.retries_max, kafka.retry_delay_ms_max"
        if failure is not None and failure.outage:
            cure = CURES[SILENT]
        elif failure is not None and failure.kind == "timeout":
            cure = (
                "faster bolts, a longer topology.message.timeout.secs, or fewer tuples in flight "
                "(topology.max.spout.pending)"
            )
        return f"it failed {counted(retry.backoffs, 'time')}{error}; {when}", ours or cure

    def _unread(self, part: Partition) -> tuple[str, str]:
        settings = self._setup.settings
        if self._error:
            return "the brokers do not do what is asked of them", f"look at them: {self._error}"
        if self._session.state is SessionState.DRAINING:
            return "a hand-over waits for tuples in flight", "a shorter kafka.drain_ms_max"
        if part.isolation.searches:
            return "processes died here, so records are tried a few at a time", "find out why they died"
        if not part.ledger.may_poll(settings["uncommitted_max"], self._now):
            most = f"kafka.uncommitted_max = {settings['uncommitted_max']:,}"
            return f"{most} offsets are out beyond the commit", "faster bolts, or a larger kafka.uncommitted_max"
        read = "it was read" if part.cursor.has_waiting else "it waits in Kafka"
        if self._now - self._called_at >= LOOK_MS:
            return self._not_asked(read)
        if part.cursor.has_waiting or (part.cursor.turns_in_vain < IN_VAIN and self._others_come(part)):
            return f"{read}, but records of other partitions come first", FASTER
        return "records wait in Kafka, but none arrive", "the partition needs a leader: check the broker's log"

    def _not_asked(self, read: str) -> tuple[str, str]:
        if (most := self._setup.pending_max) and self._session.count_in_flight() >= most:
            reason = f"{read}, and topology.max.spout.pending = {most:,} tuples are out"
            return reason, "faster bolts, or a larger topology.max.spout.pending"
        seconds = (self._now - self._called_at) / 1000
        return f"{read}, but the bolts have been busy with earlier records for {seconds:.0f} s", FASTER

    def _others_come(self, part: Partition) -> bool:
        """Return whether others had records since this one's last turn."""
        others = (other.cursor for other in self._session.assignment.parts.values() if other is not part)
        since = part.cursor.served_at or 0
        return any((other.served_at or 0) >= since and not other.turns_in_vain for other in others)
