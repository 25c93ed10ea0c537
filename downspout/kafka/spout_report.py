"""The figures of a spout at one moment; their names are in ``downspout.metrics``."""

from __future__ import annotations

from downspout.kafka.member import Member
from downspout.kafka.port import ConsumerPort
from downspout.kafka.spout_state import Figures, Partition

__all__ = ["summarise"]


def summarise(figures: Figures, member: Member | None, now: int) -> dict[str, float]:
    """Return counters and gauges, the lag only where it is known. Asks no broker: ends are as of the last fetch.

    Args:
        figures: what was counted.
        member: the stay in the group; None: there is none now.
        now: in milliseconds.
    """
    counters = {name: float(getattr(figures, name)) for name in Figures.__slots__}
    parts = member.parts if member is not None else []
    oldest = 0
    for part in parts:
        if (since := part.ledger.emitted_at(part.ledger.commit_point())) is not None:
            oldest = max(oldest, now - since)
    lag = _lag(member) if member is not None else None
    return (
        counters
        | ({} if lag is None else {"lag": float(lag)})
        | {
            "in_flight": float(sum(part.ledger.in_flight for part in parts)),
            "retry_waiting": float(sum(part.ledger.failed for part in parts)),
            "committed": float(sum(part.commit[0] for part in parts if part.commit is not None)),
            "partitions": float(len(parts)),
            "oldest_pending_s": oldest / 1000,
        }
    )


def _lag(member: Member) -> int | None:
    """Return how far the commits are behind; None before an assignment has arrived and all of it was fetched from."""
    if not member.membership.settled:
        return None
    lag = 0
    for part in member.parts:
        if (end := _end(part, member.consumer)) is None:
            return None
        point = part.ledger.commit_point()
        # Behind the last record there may be markers, which the reader passes without a trace in the ledger.
        done_to = max(point, part.commit[0]) if part.commit is not None else point
        lag += max(0, end - done_to)
    return lag


def _end(part: Partition, consumer: ConsumerPort) -> int | None:
    return consumer.highwater(part.tp) if part.tp in consumer.assignment() else None
