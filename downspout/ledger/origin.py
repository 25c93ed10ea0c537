"""Where a row comes from: the identity that makes the sink exactly-once.

A row is identified by the record it came from (topic, the topic's Kafka id, partition, offset) and by *path*: which of
the record's rows it is. A bolt that turns one tuple into one tuple hands the origin on unchanged. A bolt that
makes several gives each a path of its own with :meth:`Origin.child`. A sink with several inputs adds which of them the
row came through (``downspout/sink/identity.py``). Bolts in between must be deterministic per
record: processed again, a record must yield the same paths with the same values.
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
    and created again is another topic; empty where the broker has none."""
    partition: int
    offset: int
    path: str = ""

    def child(self, component: str, index: int, stream: str = "default") -> Origin:
        """Return the identity of the ``index``-th tuple that ``component`` makes of this one on ``stream``."""
        step = f"{component}.{index}" if stream == "default" else f"{component}:{stream}.{index}"
        topic, topic_id, partition, offset, path = self
        # What _replace makes, for a third of the time: this runs for each row of a bolt that makes several of one.
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
