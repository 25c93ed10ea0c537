"""Message ids, by which an ack or fail finds the assignment of a partition that its record was emitted in."""

from __future__ import annotations


def id_prefix(epoch: int, topic: str, topic_id: str, partition: int) -> str:
    """Return what all message ids of one assignment of a partition start with.

    An id is this and the offset in decimal, so making one is a single concatenation. No part of it contains a slash.
    The topic's name is in it because brokers before 2.8 give topics no id.

    >>> id_prefix(3, "orders", "6jPMvg1sQ2uJmzGz1yRHQw", 0) + str(17)
    '3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0/17'
    """
    return f"{epoch}/{topic}/{topic_id}/{partition}/"


def range_id(start: int, end: int) -> str:
    """Return what follows the prefix in the id of a range ``[start, end)``."""
    return f"{start}-{end}"


def range_of(text: str) -> tuple[int, int]:
    """Return the range that :func:`range_id` wrote.

    Raises:
        ValueError: it is none.

    >>> range_of(range_id(17, 42))
    (17, 42)
    """
    start, _, end = text.partition("-")
    return int(start), int(end)


def split_id(message_id: object) -> tuple[str, int] | None:
    """Return the prefix (without its last slash) and the first offset of a message id; None where it is none of ours.

    >>> split_id("3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0/17")
    ('3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0', 17)
    >>> split_id("3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0/17-42")
    ('3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0', 17)
    >>> split_id("from elsewhere") is None
    True
    """
    if not isinstance(message_id, str):
        return None
    prefix, _, place = message_id.rpartition("/")
    try:
        return prefix, int(place) if "-" not in place[1:] else range_of(place)[0]
    except ValueError:
        return None
