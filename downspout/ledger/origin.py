"""Identities: of a row, by the record it came from; and of a tuple, by the assignment it was emitted in.

A row's origin makes the sink exactly-once: the record (topic, the topic's Kafka id, partition, offset) and a *path*,
which identifies one of the record's rows. A bolt that turns one tuple into one passes the origin on. A bolt that emits
several tuples per input gives each a path with :meth:`Origin.child`. A sink with several inputs adds the input
(``downspout/sink/identity.py``). Bolts in between must be deterministic per record: processed again, a record must
yield the same paths with the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_new: Any = tuple.__new__


class Origin(NamedTuple):
    """The identity of a row. Travels as the tuple field ``origin``; over Storm's pipe it is a JSON list.

    >>> line = Origin("lines", "6jPMvg1sQ2uJmzGz1yRHQw", 0, 17)
    >>> line.child("split", 2)
    Origin(topic='lines', topic_id='6jPMvg1sQ2uJmzGz1yRHQw', partition=0, offset=17, path='split.2')
    >>> line.child("split", 2).child("letters", 0, stream="vowels").path
    'split.2/letters:vowels.0'
    """

    topic: str
    topic_id: str
    """Kafka's id of the topic (base64 of its UUID, as Kafka's own tools print it), so that a topic that was deleted
    and created again is another topic; empty if the broker has none."""
    partition: int
    offset: int
    path: str = ""

    def child(self, component: str, index: int, stream: str = "default") -> Origin:
        """Return the identity of the ``index``-th tuple that ``component`` makes of this one on ``stream``."""
        step = f"{component}.{index}" if stream == "default" else f"{component}:{stream}.{index}"
        topic, topic_id, partition, offset, path = self
        # Like _replace, in a third of the time: this runs for each row of a bolt that emits several per input.
        made: Origin = _new(Origin, (topic, topic_id, partition, offset, f"{path}/{step}" if path else step))
        return made

    @classmethod
    def of(cls, value: Sequence[Any]) -> Origin:
        """Return ``value`` as an Origin; it may have become a plain list on Storm's pipe.

        >>> Origin.of(["lines", "", 0, 17, ""]).offset
        17
        """
        if type(value) is cls:
            return value
        try:
            topic, topic_id, partition, offset, path = value
            return cls(topic, topic_id, int(partition), int(offset), path)
        except (TypeError, ValueError):
            raise ValueError(f"{value!r} is not an origin (topic, topic_id, partition, offset, path)") from None


# --- Message ids, by which an ack or fail finds the assignment that its record was emitted in ---


def id_prefix(epoch: int, topic: str, topic_id: str, partition: int) -> str:
    """Return the prefix of all message ids of one assignment of a partition.

    An id is the prefix and the decimal offset: one concatenation. No part contains a slash. The topic's name is
    included because brokers before 2.8 give topics no id.

    >>> id_prefix(3, "orders", "6jPMvg1sQ2uJmzGz1yRHQw", 0) + str(17)
    '3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0/17'
    """
    return f"{epoch}/{topic}/{topic_id}/{partition}/"


def range_id(start: int, end: int) -> str:
    """Return the end of the id of a range ``[start, end)``, after the prefix."""
    return f"{start}-{end}"


def range_of(text: str) -> tuple[int, int]:
    """Return the range that :func:`range_id` wrote.

    Raises:
        ValueError: the text is no range.

    >>> range_of(range_id(17, 42))
    (17, 42)
    """
    start, _, end = text.partition("-")
    return int(start), int(end)


def split_id(message_id: object) -> tuple[str, int] | None:
    """Return the prefix (without its last slash) and the first offset of a message id; None: it is none of ours.

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
