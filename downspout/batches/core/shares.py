"""Which task of an emitter has which partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def share(partitions: Sequence[T], task: int, tasks: int) -> list[T]:
    """Return the partitions of one task: in their order, in turns.

    >>> share(["a", "b", "c", "d", "e"], 1, 2), share(["a"], 1, 2)
    (['b', 'd'], [])
    """
    return list(partitions[task::tasks])
