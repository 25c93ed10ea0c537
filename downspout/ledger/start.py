"""Where reading starts: the reference's table (``FirstPollOffsetStrategy``) as data.

Decided for each partition after each assignment, from what is committed for the group and by whom. The TIMESTAMP
strategies ask Kafka for the first record at or after a time; where there is none, reading starts at the end. The
OFFSETS strategies, which the reference does not have, start at an offset that is named for the partition, and at the
beginning of a partition for which none is.
"""

from __future__ import annotations

from enum import Enum


class Start(Enum):
    """A place in a partition."""

    COMMITTED = "committed"
    BEGINNING = "beginning"
    END = "end"
    TIMESTAMP = "timestamp"
    OFFSET = "offset"


# strategy: (committed by this topology id, committed by another, not committed)
STARTS: dict[str, tuple[Start, Start, Start]] = {
    "EARLIEST": (Start.COMMITTED, Start.BEGINNING, Start.BEGINNING),
    "LATEST": (Start.COMMITTED, Start.END, Start.END),
    "UNCOMMITTED_EARLIEST": (Start.COMMITTED, Start.COMMITTED, Start.BEGINNING),
    "UNCOMMITTED_LATEST": (Start.COMMITTED, Start.COMMITTED, Start.END),
    "TIMESTAMP": (Start.COMMITTED, Start.TIMESTAMP, Start.TIMESTAMP),
    "UNCOMMITTED_TIMESTAMP": (Start.COMMITTED, Start.COMMITTED, Start.TIMESTAMP),
    "OFFSETS": (Start.COMMITTED, Start.OFFSET, Start.OFFSET),
    "UNCOMMITTED_OFFSETS": (Start.COMMITTED, Start.COMMITTED, Start.OFFSET),
}


def start_at(strategy: str, *, committed: bool, by_this_topology: bool) -> Start:
    """Return where a partition starts.

    Args:
        committed: whether the group has a commit for it.
        by_this_topology: whether that commit carries this topology's id; a redeploy has a new one, a restart keeps it.

    >>> start_at("EARLIEST", committed=True, by_this_topology=False)
    <Start.BEGINNING: 'beginning'>
    """
    column = 2 if not committed else 0 if by_this_topology else 1
    return STARTS[strategy][column]
