"""What the inputs of a state must be like: found where a topology is checked, and again where a task begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from downspout.batches.streams import ATTEMPT, CONTROL
from downspout.batches.updates import Update
from downspout.formatting import nearest


class StateInput(NamedTuple):
    """One input stream of a state."""

    source: str
    stream: str
    fields: Sequence[str]  # of its tuples
    grouping: str = ""  # by Storm's name, in any case; empty: it is not known
    by: Sequence[str] = ()  # fields of a fields grouping

    @property
    def is_whole(self) -> bool:
        """Whether one task gets all tuples, or it is not known."""
        return self.grouping.upper() in ("", "GLOBAL")


def faults(
    inputs: Sequence[StateInput], keys: Sequence[str], update: Update, tasks: int, *, is_told: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a state's inputs, and a cure for each.

    Args:
        inputs: all of them, those from the coordinator too.
        keys: the fields of the key.
        update: what ``state.update`` says.
        tasks: how many there are of the state.
        is_told: whether a coordinator tells the state of its batches.

    >>> from downspout.batches.updates import update_of
    >>> given = StateInput("split", "default", ["attempt", "word"], "SHUFFLE")
    >>> [what for what, _ in faults([given], ["wrd"], update_of("count"), 1, is_told=False)]
    ["stream 'default' of 'split' has no field 'wrd'"]
    >>> [what for what, _ in faults([given], ["word"], update_of("count"), 2, is_told=False)]
    ["tuples of one key from 'split' may reach several of its tasks"]
    """
    heard = {given.stream for given in inputs}
    if is_told and (unheard := [stream for stream in CONTROL if stream not in heard]):
        yield (
            f"no input has the stream {unheard[0]}, so it would not hear of its batches",
            "coordinator=…, as KafkaBatches.spec returns it",
        )
    wanted = [ATTEMPT, *keys, *([update.field] if update.field else [])]
    for given in inputs:
        if given.stream in CONTROL:
            continue
        if lacking := [field for field in wanted if field not in given.fields]:
            what = f"stream {given.stream!r} of {given.source!r} has no field {', '.join(map(repr, lacking))}"
            handed_on = f"{given.source} must hand on the field {ATTEMPT!r} of its input"
            others = f"one of {', '.join(given.fields)}"
            yield what, handed_on if ATTEMPT in lacking else nearest(lacking[0], given.fields, others)
        elif tasks > 1 and not given.is_whole and not (given.by and set(given.by) <= set(keys)):
            yield (
                f"tuples of one key from {given.source!r} may reach several of its tasks",
                f"inputs={{{given.source}: Grouping.fields({', '.join(map(repr, keys))})}}, or one task",
            )
