"""Storm's groupings: which tasks receive a tuple.

A *route* is a function from a tuple's values to its targets. Targets are opaque here.

==================  ===========================================================================================
grouping            tasks that receive the tuple
==================  ===========================================================================================
shuffle, none       the next task of a list that was shuffled once, round-robin (so counts differ by at most 1)
local_or_shuffle    the same: all tasks are local
fields              the task picked by the hash of these fields: equal values go to the same task
all                 every task
global              the task with the lowest id
direct              the task that the emitter names; a normal emit reaches no task
==================  ===========================================================================================
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from numbers import Number
from operator import itemgetter
from typing import Any, TypeVar

T = TypeVar("T")
Route = Callable[[tuple[Any, ...]], Sequence[T]]
CACHE_MAX = 65_536  # Keys of a fields grouping whose task is cached; with one more, the cache is emptied
PART_BYTES_MAX = 256  # A key is cached if each of its fields takes no more memory
_CACHED_TYPES = {str, bytes, int, float, bool, type(None), Decimal, date, datetime}  # others may hold any amount
_MASK = (1 << 61) - 1
_ADDRESS_REPR: Any = object.__repr__


def stable_hash(value: Any) -> int:
    """Return a hash that is equal for equal values, in every process and on every machine.

    Python salts its hash of text per process. A list and a tuple of equal items hash alike, because Storm's pipes turn
    tuples into lists. O(size of the value).

    >>> stable_hash("dog"), stable_hash([1, None]) == stable_hash((1.0, None))
    (2167159165, True)
    """
    if isinstance(value, str):
        return zlib.crc32(value.encode("utf-8", "surrogatepass"))
    if value is None:
        return 0x6E6F6E65
    if isinstance(value, Number):
        return 0 if value != value else hash(value)  # NaN's own hash is its address
    if isinstance(value, bytes | bytearray | memoryview):
        return zlib.crc32(value)
    if isinstance(value, list | tuple):
        total = 0x345678
        for item in value:
            total = (total * 1_000_003 ^ stable_hash(item)) & _MASK
        return total
    if isinstance(value, datetime):
        return _hash_of_moment(value)
    if isinstance(value, Mapping):
        return sum(stable_hash(item) for item in value.items()) & _MASK
    if isinstance(value, set | frozenset):
        return sum(map(stable_hash, value)) & _MASK
    if getattr(type(value), "__repr__", None) is _ADDRESS_REPR:
        raise TypeError(f"{type(value).__name__} {value!r} cannot be hashed the same way in every process")
    return zlib.crc32(repr(value).encode("utf-8", "surrogatepass"))


def _hash_of_moment(value: datetime) -> int:
    """Return the same hash for a moment in any time zone: such values are equal, but their texts differ."""
    if value.tzinfo is not None:
        with contextlib.suppress(OverflowError):  # at the ends of the calendar: keep its zone
            value = value.astimezone(UTC)
    return zlib.crc32(value.isoformat().encode())


def make_route(
    grouping: str, targets: Sequence[T], indexes: Sequence[int], rng: random.Random
) -> tuple[Sequence[T] | None, Route[T]]:
    """Return the fixed targets (None if they depend on the tuple) and the route.

    ``targets`` has the lowest task id first; ``indexes`` are the positions of the grouping's fields in the values.
    """
    if grouping == "direct":
        return (), lambda values: ()
    if grouping == "all" or (len(targets) == 1 and grouping != "fields"):
        everyone = tuple(targets)
        return everyone, lambda values: everyone
    if grouping == "global":
        lowest = (targets[0],)
        return lowest, lambda values: lowest
    if grouping == "fields":
        if len(targets) == 1:
            only = (targets[0],)
            return only, lambda values: only
        return None, _fields_route(targets, indexes)
    return None, _shuffle_route(targets, rng)


def _shuffle_route(targets: Sequence[T], rng: random.Random) -> Route[T]:
    order = [(target,) for target in targets]
    rng.shuffle(order)
    turn = itertools.cycle(order).__next__
    return lambda values: turn()


def _fields_route(targets: Sequence[T], indexes: Sequence[int]) -> Route[T]:
    singles = [(target,) for target in targets]
    count = len(singles)
    pick, is_several = itemgetter(*indexes), len(indexes) > 1
    cache: dict[Any, tuple[T]] = {}

    def route(values: tuple[Any, ...]) -> Sequence[T]:
        key = pick(values)
        try:
            return cache[key]
        except KeyError:
            found = singles[stable_hash(key) % count]
            if _is_small(key if is_several else (key,)):
                if len(cache) >= CACHE_MAX:
                    cache.clear()
                cache[key] = found
            return found
        except TypeError:  # a list among the fields
            return singles[stable_hash(key) % count]

    return route


def _is_small(parts: tuple[Any, ...]) -> bool:
    return all(type(part) in _CACHED_TYPES and sys.getsizeof(part) <= PART_BYTES_MAX for part in parts)


def combine(routes: Sequence[tuple[Sequence[T] | None, Route[T]]]) -> tuple[Sequence[T] | None, Route[T]]:
    """Return one route for all subscribers of a stream, in their order."""
    if len(routes) == 1:
        return routes[0]
    fixed = [targets for targets, _ in routes]
    if None not in fixed:
        everyone = tuple(target for targets in fixed if targets is not None for target in targets)
        return everyone, lambda values: everyone
    functions = [route for _, route in routes]
    return None, lambda values: [target for route in functions for target in route(values)]
