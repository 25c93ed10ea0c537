"""Identities: of rows, by the records they came from; of tuples, by the assignments they were emitted in.

A row's origin makes the sink exactly-once: the record (topic, the topic's Kafka id, partition, offset) and a *path*,
which identifies one of the record's rows. A bolt that emits one tuple per input passes the origin on; one that emits
several gives each a path with :meth:`Origin.child`. A sink with several inputs adds the input
(``downspout/sink/identity.py``). Bolts must be deterministic per record: when processed again, a record must yield the
same paths with the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_new: Any = tuple.__new__


class Origin(NamedTuple):
    """The identity of a row, in the tuple field ``origin``; a JSON list on Storm's pipe.

    >>> line = Origin("lines", "6jPMvg1sQ2uJmzGz1yRHQw", 0, 17)
    >>> line.child("split", 2)
    Origin(topic='lines', topic_id='6jPMvg1sQ2uJmzGz1yRHQw', partition=0, offset=17, path='split.2')
    >>> line.child("split", 2).child("letters", 0, stream="vowels").path
    'split.2/letters:vowels.0'
    """

    topic: str
    topic_id: str
    """Kafka's id of the topic (base64 of its UUID, as Kafka's tools print it), which tells a recreated topic from the
    earlier one; empty if the broker has none."""
    partition: int
    offset: int
    path: str = ""

    def child(self, component: str, index: int, stream: str = "default") -> Origin:
        """Return the identity of the ``index``-th tuple that ``component`` emits for this one on ``stream``."""
        step = f"{component}.{index}" if stream == "default" else f"{component}:{stream}.{index}"
        topic, topic_id, partition, offset, path = self
        # Like _replace, in a third of the time: it runs for each tuple of such a bolt.
        made: Origin = _new(Origin, (topic, topic_id, partition, offset, f"{path}/{step}" if path else step))
        return made

    @classmethod
    def of(cls, value: Sequence[Any]) -> Origin:
        """Convert ``value``, a plain list after Storm's pipe, to an Origin.

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


# --- Message ids: they tie an ack or fail to the assignment in which its record was emitted ---


def id_prefix(epoch: int, topic: str, topic_id: str, partition: int) -> str:
    """Return the prefix of all message ids of one assignment of a partition.

    An id is the prefix and the decimal offset. No part contains a slash. The topic's name is
    included because brokers before 2.8 give topics no id.

    >>> id_prefix(3, "orders", "6jPMvg1sQ2uJmzGz1yRHQw", 0) + str(17)
    '3/orders/6jPMvg1sQ2uJmzGz1yRHQw/0/17'
    """
    return f"{epoch}/{topic}/{topic_id}/{partition}/"


def range_id(start: int, end: int) -> str:
    """Return the suffix of a range's message id."""
    return f"{start}-{end}"


def range_of(text: str) -> tuple[int, int]:
    """Parse the suffix that :func:`range_id` made.

    Raises:
        ValueError: it is not a range.

    >>> range_of(range_id(17, 42))
    (17, 42)
    """
    start, _, end = text.partition("-")
    return int(start), int(end)


def split_id(message_id: object) -> tuple[str, int] | None:
    """Return the prefix (without its last slash) and the first offset of a message id; None: it is not ours.

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
