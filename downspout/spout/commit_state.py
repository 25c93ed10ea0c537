"""What the broker has of one partition: the last commit, and whether that is sure."""

from __future__ import annotations

RENEW_MS = 3_600_000
"""A commit that has not changed is sent again after so long: where the group has no members, as with
``kafka.mode=assign``, it expires by its own age (KIP-211; before Kafka 2.1 in any group), by default in a week."""


class CommitState:
    """The commit of one partition."""

    __slots__ = ("_sent_at", "last")

    def __init__(self, last: tuple[int, str] | None = None) -> None:
        self.last = last  # offset and metadata that the broker has from us, or from an earlier owner
        self._sent_at: int | None = None
        """When we sent it, in ms; None: an earlier owner did, or the broker may have another."""

    @property
    def offset(self) -> int:
        """Return the committed offset; -1 where there is none."""
        return -1 if self.last is None else self.last[0]

    def age_ms(self, now: int) -> int:
        """Return how old our last commit is; where it is not ours, it is as old as can be."""
        return now - (self._sent_at or 0)

    def is_due(self, point: int, metadata: str, now: int) -> bool:
        """Return whether a commit says something new, or something that was sent long ago, or at an unknown time."""
        return self.last != (point, metadata) or self._sent_at is None or now - self._sent_at >= RENEW_MS

    def sent(self, point: int, metadata: str, now: int) -> None:
        """The broker has this commit."""
        self.last, self._sent_at = (point, metadata), now

    def in_doubt(self) -> None:
        """The broker may have applied a commit or not: the next one says all, even what it said before."""
        self._sent_at = None
