"""What a StateBolt makes of the tuples of a key: ``state.update``.

==================  ==============================================================================================
``count``           counts tuples
``sum:field``       adds up a field; ``min:field`` and ``max:field`` likewise, and nulls are left out by all three
``last:field``      keeps the value of the batch's last tuple; in an order that a replay may change
``module.function`` a *reducer*: is given the value (None: there is none) and a tuple's values, returns the new value
``module.Class``    a *combiner*: ``init(values)`` makes a value of a tuple, ``combine(one, other)`` one of two
==================  ==============================================================================================

A combiner's values are combined as they come, so a task holds one for each key of a batch. For a reducer it holds the
tuples. Either's order of the tuples within a batch is not defined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, Protocol

from downspout.errors import ConfigError
from downspout.settings.import_path import load

UPDATE = "state.update"
FUNCTIONS = ("count", "sum", "min", "max", "last")


class Combiner(Protocol):
    """Makes one value of many, in any order and in any groups. Values are JSON; None stands for none."""

    def init(self, values: Any) -> Any:
        """Return the value of one tuple."""

    def combine(self, one: Any, other: Any) -> Any:
        """Return the value of two; neither is None."""


@dataclass(frozen=True)
class Count:
    """Counts tuples.

    >>> Count().combine(Count().init(("a",)), 4)
    5
    """

    def init(self, values: Any) -> int:
        """Return 1."""
        return 1

    def combine(self, one: int, other: int) -> int:
        """Return the sum."""
        return one + other


@dataclass(frozen=True)
class OfField:
    """Combines the values of one field.

    >>> from collections import namedtuple
    >>> OfField("delay", max).init(namedtuple("Flight", "carrier delay")("UA", 7))
    7
    """

    field: str
    combine: Callable[[Any, Any], Any]

    def init(self, values: Any) -> Any:
        """Return the field.

        Raises:
            TypeError: it is to be added up, and is no number.
        """
        value = getattr(values, self.field)
        if self.combine is _add and value.__class__ not in _NUMBERS:
            raise TypeError(f"{self.field} = {value!r} is no number, and cannot be added up")
        return value


_NUMBERS = frozenset({int, float, bool, Decimal, type(None)})


def _add(one: Any, other: Any) -> Any:
    return one + other


def _later(one: Any, other: Any) -> Any:
    return other


COMBINES: dict[str, Callable[[Any, Any], Any]] = {"sum": _add, "min": min, "max": max, "last": _later}


def combined(combiner: Combiner, one: Any, other: Any) -> Any:
    """Return the value of two, each of which may be None."""
    if one is None or other is None:
        return other if one is None else one
    return combiner.combine(one, other)


@dataclass(frozen=True)
class Update:
    """What ``state.update`` says: a combiner, or a reducer."""

    name: str  # of the value, as a field
    combiner: Combiner | None = None
    reducer: Callable[[Any, Any], Any] | None = None
    field: str | None = None  # that is looked at

    def add(self, held: Any, values: Any) -> Any:
        """Return what is held of a key, with one tuple more."""
        if self.combiner is not None:
            return combined(self.combiner, held, self.combiner.init(values))
        if held is None:
            return [values]
        held.append(values)
        return held

    def add_many(self, held: dict[Any, Any], keys: Sequence[Any], rows: Sequence[Any]) -> None:
        """Add a tuple of each key to what is held by key, as :meth:`add` does one.

        >>> held = {"a": 1}
        >>> Update("count", Count()).add_many(held, ["a", "b", "a"], [("a",), ("b",), ("a",)])
        >>> held
        {'a': 3, 'b': 1}
        """
        if type(self.combiner) is Count:
            for key, count in Counter(keys).items():
                held[key] = held.get(key, 0) + count
            return
        for key, values in zip(keys, rows, strict=True):
            held[key] = self.add(held.get(key), values)

    def apply(self, value: Any, held: Any) -> Any:
        """Return a key's value, after what is held of a batch."""
        if self.combiner is not None:
            return combined(self.combiner, value, held)
        assert self.reducer is not None
        return reduce(self.reducer, held, value)


def update_of(text: str) -> Update:
    """Return what ``state.update`` says.

    >>> update_of("sum:dep_delay").name, update_of("count").name
    ('sum_dep_delay', 'count')

    Raises:
        ConfigError: it is out of form, or cannot be imported.
    """
    function, colon, field = text.partition(":")
    if function == "count" and not colon:
        return Update("count", Count())
    if function in COMBINES and field:
        return Update(f"{function}_{field}", OfField(field, COMBINES[function]), field=field)
    if colon or "." not in text:
        raise ConfigError(
            f"{UPDATE} = {text!r} is not an update",
            cure=f"one of {', '.join(FUNCTIONS)}, as count and sum:field; or module.function",
        )
    found = load(UPDATE, text)
    if isinstance(found, type):
        if not callable(getattr(found, "init", None)) or not callable(getattr(found, "combine", None)):
            raise ConfigError(f"{UPDATE} = {text}: the class has no init and combine", cure="a function, or both")
        return Update("value", found())
    if not callable(found):
        raise ConfigError(f"{UPDATE} = {text} cannot be called", cure="module.function")
    return Update("value", reducer=found)


def meaning_of(keys: Sequence[str], update: str) -> str:
    """Return what a state's keys and values are, for its store; a function may move to another module.

    >>> meaning_of(["word"], "count"), meaning_of(["user", "day"], "shop.updates.longest")
    ('count by word', 'longest by user, day')
    """
    name = update if ":" in update else update.rpartition(".")[2]
    return f"{name} by {', '.join(keys)}"


def path_of(given: Any) -> Any:
    """Return ``state.update`` as text, where a function or a class was given: Storm's configuration is JSON.

    >>> path_of(Count)
    'downspout.batches.updates.Count'

    Raises:
        ConfigError: it is not at the top of a module, so that no other process could import it.
    """
    if not callable(given):
        return given
    module, name = getattr(given, "__module__", ""), getattr(given, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier():
        raise ConfigError(
            f"{UPDATE} = {name or given!r} of {module or 'no module'} cannot be imported by other processes",
            cure="a function or a class at the top of a module",
        )
    return f"{module}.{name}"
