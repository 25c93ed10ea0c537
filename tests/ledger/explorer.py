"""All reachable states of a model, breadth first: the shortest way to anything that is wrong is found first.

A model is a start, a function from a state to its steps, and what must hold. States are hashable and canonical: two
states that behave alike are equal, or the search does not end. Nothing here knows of Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


class Violation(AssertionError):
    """Something that must hold does not: the message tells the shortest way there."""


@dataclass
class Explored(Generic[S]):
    """What a search has seen.

    Attributes:
        states: all of them, in the order of their distance from the start.
        steps: how many steps were taken between them.
        depth: the distance of the farthest.
        complete: whether every step of every state was taken; else the search ended at its depth.
    """

    states: list[S]
    steps: int
    depth: int
    complete: bool
    _before: dict[S, tuple[S, str] | None] = field(repr=False)
    after: list[list[int]] = field(repr=False)

    def way_to(self, state: S) -> list[str]:
        """Return the labels of a shortest way from the start."""
        labels: list[str] = []
        while (before := self._before[state]) is not None:
            state, label = before
            labels.append(label)
        return labels[::-1]

    def cannot_reach(self, good: Callable[[S], bool]) -> list[S]:
        """Return the states from which no series of healthy steps leads to a good one. O(states + steps)."""
        back: list[list[int]] = [[] for _ in self.states]
        for source, targets in enumerate(self.after):
            for target in targets:
                back[target].append(source)
        queue = [index for index, state in enumerate(self.states) if good(state)]
        reached = set(queue)
        for index in queue:
            for source in back[index]:
                if source not in reached:
                    reached.add(source)
                    queue.append(source)
        return [state for index, state in enumerate(self.states) if index not in reached]


def explore(
    start: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    *,
    healthy: Callable[[str], bool] = lambda label: True,
    depth_max: int | None = None,
) -> Explored[S]:
    """Visit every state that can be reached from ``start``.

    Args:
        start: the first state.
        steps: yields (label, next state); raises AssertionError where something does not hold.
        healthy: whether a step with this label is no fault; only such steps count for :meth:`Explored.cannot_reach`.
        depth_max: go no farther than this.

    Raises:
        Violation: ``steps`` raised.
    """
    before: dict[S, tuple[S, str] | None] = {start: None}
    number = {start: 0}
    found = Explored([start], 0, 0, True, before, [])
    layer = [start]
    while layer:
        if found.depth == depth_max:
            found.complete = False
            break
        following: list[S] = []
        for state in layer:
            after: list[int] = []
            found.after.append(after)
            label = "looking at it"
            try:
                for label, target in steps(state):
                    found.steps += 1
                    if target not in number:
                        number[target] = len(number)
                        before[target] = (state, label)
                        found.states.append(target)
                        following.append(target)
                    if healthy(label):
                        after.append(number[target])
            except AssertionError as error:
                way = " → ".join([*found.way_to(state), f"after {label!r}"])
                raise Violation(f"{error}\nthe way there: {way}") from error
        found.depth += bool(following)
        layer = following
    return found
