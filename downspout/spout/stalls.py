"""Partitions that are stuck: found, reported once each, with the offset that blocks and why as far as the spout knows.

The time limit is twice the session timeout: within that, whatever was lost with a process or a broker should be on its
way again. It is two thirds of the message timeout where that is longer: a sink may hold records for a third of it.

What no member can see is a partition that none of them was given. A task that was given none says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from downspout.formatting import counted
from downspout.kafka.port import TopicPartition
from downspout.kafka.retry_gate import RetryGate
from downspout.ledger.progress import Progress, StallReport
from downspout.outages import CURES, OUTAGES, SILENT, Outage
from downspout.spout.group.group_session import GroupSession, SessionState
from downspout.spout.partition import LastFailure, Partition
from downspout.spout.setup import Setup

LOOK_MS = 1_000  # How often partitions are looked at
IN_VAIN = 3  # A partition that was polled alone so often, and nothing came, does not wait for the others
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
        self._watched: dict[TopicPartition, Progress] = {}
        self._empty_since: int | None = None  # Since when no partition is ours
        self._said_empty = False

    def report(self, now: int) -> dict[str, float]:
        """Return gauges; ``downspout.metrics`` explains them."""
        watched = self._watched.values()
        return {
            "stuck": float(sum(progress.stuck for progress in watched)),
            "still_s": max((progress.still_ms(now) for progress in watched), default=0) / 1000,
        }

    def look(self, session: GroupSession, now: int, called_at: int, whereabouts: Whereabouts) -> None:
        """Look at all partitions, where it is time to, and warn.

        Args:
            called_at: when the spout was asked for tuples last.
        """
        if now < self._due:
            return
        self._due = now + LOOK_MS
        parts = session.assignment.parts
        assigned = session.consumer.assignment()
        self._look_at_share(session, bool(assigned | parts.keys()), now)
        self._watched = {
            tp: self._watched.get(tp) or Progress(self._limit_ms, now) for tp in sorted(assigned | parts.keys())
        }
        for tp, progress in self._watched.items():
            part = parts.get(tp)
            point = None if part is None else self._point(part, session)
            waits = part is None or self._waits(part, point or 0, session)
            report = progress.look(point, waits, now, None if part is None else _first_emit(part, point or 0))
            if report is not None:
                self._warn(tp, part, report, Why(self._setup, self._error(), session, now, called_at, whereabouts))

    def explanation(self, session: GroupSession, now: int, called_at: int, whereabouts: Whereabouts) -> Why:
        """Return what says of any record why it waits, as of now; arguments as for :meth:`look`."""
        return Why(self._setup, self._error(), session, now, called_at, whereabouts)

    def _look_at_share(self, session: GroupSession, has_any: bool, now: int) -> None:
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
        """Return what the broker, or the connection to it, has to say at the moment; empty: nothing bad."""
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

    def _warn(self, tp: TopicPartition, part: Partition | None, report: StallReport, why: Why) -> None:
        at = "" if report.offset is None else f"@{report.offset}"
        place, seconds = f"{tp.topic}[{tp.partition}]{at}", report.lasted_ms / 1000
        if not report.stuck:
            self._log.warning("%s: moves again, after %.0f s", place, seconds)
            return
        reason, cure = why.of(part, report.offset or 0)
        self._log.warning("%s: makes no progress for %.0f s: %s. Try: %s", place, seconds, reason, cure)


def _is_outage(last: LastFailure) -> bool:
    return last.failure is not None and last.failure.kind == "timeout"


def _first_emit(part: Partition, offset: int) -> int | None:
    return part.ledger.emitted_at(offset) if part.ledger.retry_state(offset) is None else None


class Why:
    """What a record, or a partition, waits for. The arguments are those of :class:`Stalls` and :meth:`Stalls.look`."""

    def __init__(
        self, setup: Setup, error: str, session: GroupSession, now: int, called_at: int, whereabouts: Whereabouts
    ) -> None:
        self._setup = setup
        self._error = error
        self._session = session
        self._now = now
        self._called_at = called_at
        self._whereabouts = whereabouts

    def cure(self, part: Partition, offset: int) -> str:
        """Return what may help."""
        return self.of(part, offset)[1]

    def of(self, part: Partition | None, offset: int) -> tuple[str, str]:
        """Return the reason and what may help."""
        if (away := self._away(part, offset)) is not None:
            return str(away), f"{away.cure}; nothing else is to be done"
        if part is None:
            return "where to start is not known yet", f"look at the broker: {self._error or 'its log'}"
        emitted_at, retry = part.ledger.emitted_at(offset), part.ledger.retry_state(offset)
        if emitted_at is not None:
            out, cure = self._out(part, offset, emitted_at)
            return (out, cure) if retry is None else self._retry(part.last_failures.get(offset), retry, out)
        if offset in part.exhausted:
            topic = self._setup.dead_letter_topic
            return f"it failed for good, and its dead letter is not written to {topic}", "look at that topic's settings"
        if retry is not None:
            return self._retry(part.last_failures.get(offset), retry)
        return self._unread(part)

    def _away(self, part: Partition | None, offset: int) -> Outage | None:
        """Return what does not answer, where the partition may wait for that; None where it does not."""
        told = [outage for outage in OUTAGES.current() if outage.said_at is not None]
        if not told or (part is not None and (last := part.last_failures.get(offset)) and not _is_outage(last)):
            return None
        return told[0]

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
                "faster bolts, a longer topology.message.timeout.secs, or less that is out at once: "
                "topology.max.spout.pending"
            )
        return f"it failed {counted(retry.backoffs, 'time')}{error}; {when}", ours or cure

    def _unread(self, part: Partition) -> tuple[str, str]:
        settings = self._setup.settings
        if self._error:
            return "the brokers do not do what they are asked to", f"look at them: {self._error}"
        if self._session.state is SessionState.DRAINING:
            return "a hand-over waits for what is out", "a shorter kafka.drain_ms_max"
        if part.isolation.searches:
            return "processes died here, so records are tried a few at a time", "look for why they died"
        if not part.ledger.may_poll(settings["uncommitted_max"], self._now):
            most = f"kafka.uncommitted_max = {settings['uncommitted_max']:,}"
            return f"{most} offsets are out beyond the commit", "faster bolts, or a larger kafka.uncommitted_max"
        read = "it was read" if part.cursor.has_waiting else "it waits in Kafka"
        if self._now - self._called_at >= LOOK_MS:
            return self._not_asked(read)
        if part.cursor.has_waiting or (part.cursor.turns_in_vain < IN_VAIN and self._others_come(part)):
            return f"{read}, and records of other partitions come first", FASTER
        return "records wait in Kafka, and none arrive", "the partition needs a leader: look at the broker's log"

    def _not_asked(self, read: str) -> tuple[str, str]:
        if (most := self._setup.pending_max) and self._session.in_flight >= most:
            reason = f"{read}, and topology.max.spout.pending = {most:,} tuples are out"
            return reason, "faster bolts, or a larger topology.max.spout.pending"
        seconds = (self._now - self._called_at) / 1000
        return f"{read}, and the bolts have been busy with what came before for {seconds:.0f} s", FASTER

    def _others_come(self, part: Partition) -> bool:
        """Return whether others had records since this one's last turn."""
        others = (other.cursor for other in self._session.assignment.parts.values() if other is not part)
        since = part.cursor.served_at or 0
        return any((other.served_at or 0) >= since and not other.turns_in_vain for other in others)
