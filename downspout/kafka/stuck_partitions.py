"""Partitions that have no answer while others have: what is to go there must not hold up the rest.

A producer's buffer is full when its oldest record has waited for long, and a topology has so many tuples out at most.
Where one leader alone is away that would stop the records of all partitions. So such a partition takes one batch at a
time, to see whether it answers; other records for it are refused, and what it holds fills no buffer.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka import errors

from downspout.kafka.partitioners import Partitions

Place = tuple[str, int]


class StuckPartitions:
    """Which partitions are stuck.

    >>> stuck = StuckPartitions()
    >>> stuck.after_s = 10.0
    >>> stuck.look([(("out", 0), 1.0), (("out", 1), 9.0)], now=12.0); ("out", 0) in stuck
    False
    >>> stuck.answered(("out", 2), now=9.5)
    >>> stuck.look([(("out", 0), 1.0), (("out", 1), 9.0)], now=12.0); ("out", 0) in stuck, ("out", 1) in stuck
    (True, False)
    >>> stuck.takes("out", 0), stuck.takes("out", 1)
    (False, True)
    >>> stuck.look([], now=30.0); stuck.takes("out", 0), stuck.takes("out", 0)  # what it held was given up
    (True, False)
    >>> stuck.answered(("out", 0), now=31.0); stuck.takes("out", 0)
    True
    """

    def __init__(self) -> None:
        self.after_s = float("inf")  # So long a partition has no answer, while others have
        self._answered_at = float("-inf")  # When any partition has answered last
        self._places: set[Place] = set()
        self._busy: set[Place] = set()  # Those of them that have something out

    def __contains__(self, place: Place) -> bool:
        return place in self._places

    def __bool__(self) -> bool:
        return bool(self._places)

    def answered(self, place: Place, now: float) -> None:
        """Note that a partition has taken records."""
        self._answered_at = now
        self._places.discard(place)

    def look(self, pending: Iterable[tuple[Place, float]], now: float) -> None:
        """Find them among what has no answer, and since when."""
        late, seen = now - self.after_s, set()
        for place, since in pending:
            seen.add(place)
            if since <= late and since <= self._answered_at:
                self._places.add(place)
        self._busy = self._places & seen

    def takes(self, topic: str, partition: int) -> bool:
        """Return whether a partition takes a record."""
        place = topic, partition
        if place not in self._places:
            return True
        if place in self._busy:
            return False
        self._busy.add(place)
        return True

    def refusal(self, topic: str, partition: int) -> errors.KafkaError:
        """Return the error of a record that it does not take."""
        return errors.KafkaTimeoutError(f"{topic}[{partition}] has not answered for {self.after_s:g} s or more")

    def without(self, topic: str, partitions: Partitions) -> Partitions:
        """Return a topic's partitions for records that may go to any."""
        free = [number for number in partitions.available if (topic, number) not in self._places]
        return Partitions(partitions.count, free) if self._places and free else partitions
