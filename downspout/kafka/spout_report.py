"""The figures of a spout at one moment; their names are in ``downspout.metrics``."""

from __future__ import annotations

from collections.abc import Sequence

from downspout.kafka.port import ConsumerPort
from downspout.kafka.spout_state import Figures, Partition

__all__ = ["summarise"]


def summarise(
    figures: Figures, parts: Sequence[Partition], consumer: ConsumerPort | None, now: int
) -> dict[str, float]:
    """Return counters and gauges. Asks no broker: the end of a log is as of the last fetch."""
    counters = {name: float(getattr(figures, name)) for name in Figures.__slots__}
    lag = oldest = 0
    for part in parts:
        point = part.ledger.commit_point()
        end = _end(part, consumer)
        # Behind the last record there may be markers, which the reader passes without a trace in the ledger.
        done_to = max(point, part.commit[0]) if part.commit is not None else point
        lag += max(0, (end if end is not None else done_to) - done_to)
        if (since := part.ledger.emitted_at(point)) is not None:
            oldest = max(oldest, now - since)
    return counters | {
        "lag": float(lag),
        "in_flight": float(sum(part.ledger.in_flight for part in parts)),
        "retry_waiting": float(sum(part.ledger.failed for part in parts)),
        "committed": float(sum(part.commit[0] for part in parts if part.commit is not None)),
        "partitions": float(len(parts)),
        "oldest_pending_s": oldest / 1000,
    }


def _end(part: Partition, consumer: ConsumerPort | None) -> int | None:
    if consumer is None or part.tp not in consumer.assignment():
        return None
    return consumer.highwater(part.tp)
