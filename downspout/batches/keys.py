"""How the fields of a tuple become the key of a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from downspout.batches.stores import Key

_AS_THEY_ARE = frozenset({str, int, bool, type(None)})


def key_maker(places: Sequence[int]) -> Callable[[Sequence[Any]], Key]:
    """Return the function that makes a key of the values at some places. It runs for each tuple.

    Values that are one number to JSON are one key: 1.0 is the key 1. A list, as a tuple becomes on Storm's pipe, is a
    tuple.

    >>> key_maker([1, 0])(["UA", 2.0, "x"]), key_maker([0])([["a", 1.5]])
    ((2, 'UA'), (('a', 1.5),))
    """
    if len(places) == 1:
        (place,) = places

        def one(values: Sequence[Any]) -> Key:
            part = values[place]
            return (part,) if part.__class__ in _AS_THEY_ARE else (_plain(part),)

        return one
    if not places:
        return lambda values: ()
    get = itemgetter(*places)

    def several(values: Sequence[Any]) -> Key:
        parts: Key = get(values)
        return parts if _AS_THEY_ARE.issuperset(map(type, parts)) else tuple(map(_plain, parts))

    return several


def _plain(part: Any) -> Any:
    if isinstance(part, float):
        return int(part) if part.is_integer() else part
    return tuple(map(_plain, part)) if isinstance(part, list | tuple) else part
