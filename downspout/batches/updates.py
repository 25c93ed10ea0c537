"""A StateBolt's processing of a batch: its inputs, the key of a tuple, the update of a value, and the commit.

``state.update`` defines how the tuples of a key update its value:

==================  ==============================================================================================
``count``           counts tuples
``sum:field``       sums a field, ignoring nulls; likewise ``min:field`` and ``max:field``
``last:field``      keeps the field's last value that is not null, in an order that may differ in a replay
``module.function`` a *reducer*: from the value (None if there is none) and a tuple's values to the new value
``module.Class``    a *combiner*: ``init(values)`` makes a value from a tuple, ``combine(one, other)`` one from two
==================  ==============================================================================================

Tuples are combined on arrival, so a task holds one value for each key of a batch; for a reducer it holds all tuples.
The order of tuples within a batch is undefined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

from downspout.batches.core.protocol import ATTEMPT, CONTROL, Attempt
from downspout.batches.core.state_values import Commit, StateKind
from downspout.batches.stores import Key, StateStore, StateTransaction, key_of
from downspout.errors import ConfigError
from downspout.formatting import nearest
from downspout.settings.table import SETTINGS, load

_AS_THEY_ARE = frozenset({str, int, type(None)})


def key_maker(places: Sequence[int]) -> Callable[[Sequence[Any]], Key]:
    """Return the function that makes a key from the values at some positions. It runs for each tuple.

    A float without a fraction becomes an int: 1.0 and 1 are the same key, and true is not. A list becomes a tuple, as
    Storm's pipe turns tuples into lists.

    >>> key_maker([1, 0])(["UA", 2.0, "x"]), key_maker([0])([["a", 1.5]])
    ((2, 'UA'), (('a', 1.5),))
    """
    if len(places) == 1:
        (place,) = places

        def one(values: Sequence[Any]) -> Key:
            part = values[place]
            return (part,) if part.__class__ in _AS_THEY_ARE else key_of([_plain(part)])

        return one
    if not places:
        return lambda values: ()
    get = itemgetter(*places)

    def several(values: Sequence[Any]) -> Key:
        parts: Key = get(values)
        return parts if _AS_THEY_ARE.issuperset(map(type, parts)) else key_of(map(_plain, parts))

    return several


def _plain(part: Any) -> Any:
    if isinstance(part, float):
        return int(part) if part.is_integer() else part
    return tuple(map(_plain, part)) if isinstance(part, list | tuple) else part


UPDATE = "state.update"
FUNCTIONS = ("count", "sum", "min", "max", "last")


class Combiner(Protocol):
    """Merges values in any order and grouping. Values are JSON; None means no value."""

    def init(self, values: Any) -> Any:
        """Return the value of one tuple."""

    def combine(self, one: Any, other: Any) -> Any:
        """Merge two values, neither of which is None."""


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
            TypeError: it must be summed, but is not a number.
        """
        value = getattr(values, self.field)
        if self.combine is _add and value.__class__ not in _NUMBERS:
            raise TypeError(f"{self.field} = {value!r} is not a number, and cannot be added up")
        return value


_NUMBERS = frozenset({int, float, bool, Decimal, type(None)})


def _add(one: Any, other: Any) -> Any:
    return one + other


def _later(one: Any, other: Any) -> Any:
    return other


COMBINES: dict[str, Callable[[Any, Any], Any]] = {"sum": _add, "min": min, "max": max, "last": _later}


def combined(combiner: Combiner, one: Any, other: Any) -> Any:
    """Merge two values, each of which may be None."""
    if one is None or other is None:
        return other if one is None else one
    return combiner.combine(one, other)


@dataclass(frozen=True)
class Update:
    """A parsed ``state.update``: a combiner, or a reducer."""

    name: str  # of the value, as a field
    combiner: Combiner | None = None
    reducer: Callable[[Any, Any], Any] | None = None
    field: str | None = None  # that it reads

    def add(self, held: Any, values: Any) -> Any:
        """Return a key's held data after adding one tuple."""
        if self.combiner is not None:
            return combined(self.combiner, held, self.combiner.init(values))
        if held is None:
            return [values]
        held.append(values)
        return held

    def add_many(self, held: dict[Any, Any], keys: Sequence[Any], rows: Sequence[Any]) -> None:
        """Add a tuple for each key to the data held by key, as :meth:`add` does for one.

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
        """Return a key's value after applying a batch's held data."""
        if self.combiner is not None:
            return combined(self.combiner, value, held)
        assert self.reducer is not None
        return reduce(self.reducer, held, value)


def update_of(text: str) -> Update:
    """Parse ``state.update``.

    >>> update_of("sum:dep_delay").name, update_of("count").name
    ('sum_dep_delay', 'count')

    Raises:
        ConfigError: it is malformed, or cannot be imported.
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
    """Return the meaning of a state's keys and values, for its store; without a function's module, so that it may move.

    >>> meaning_of(["word"], "count"), meaning_of(["user", "day"], "shop.updates.longest")
    ('count by word', 'longest by user, day')
    """
    name = update if ":" in update else update.rpartition(".")[2]
    return f"{name} by {', '.join(keys)}"


def path_of(given: Any) -> Any:
    """Return ``state.update`` as text, even if given as a function or class: Storm's configuration is JSON.

    >>> path_of(Count)
    'downspout.batches.updates.Count'

    Raises:
        ConfigError: it is not at the top of a module, so other processes could not import it.
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


OTHERS = "a repeated batch may hold other records"
AGAIN = "a repeated batch is applied again"
NOT_EXACT = {
    ("opaque", "transactional"): OTHERS,
    ("opaque", "non_transactional"): AGAIN,
    ("transactional", "non_transactional"): AGAIN,
}
"""``batch.kind`` and ``state.kind`` → why they are not exactly once. All other pairs are."""


def check_pair(conf: Mapping[str, Any]) -> None:
    """Raise a ConfigError if a state would not count each record exactly once, unless the user has allowed that.

    >>> check_pair({"batch.kind": "opaque", "state.kind": "opaque"})
    >>> check_pair({"batch.kind": "opaque", "state.kind": "transactional"})
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: batch.kind = opaque with state.kind = transactional is not exactly once: a \
repeated batch may hold other records. Try: state.kind=opaque; or state.exactly_once=False, if counts may be wrong
    """
    batch, state = (
        SETTINGS[key].parse(conf.get(key, SETTINGS[key].default), "topology") for key in ("batch.kind", "state.kind")
    )
    is_allowed = SETTINGS["state.exactly_once"].parse(conf.get("state.exactly_once", True), "topology") is False
    why = NOT_EXACT.get((batch, state))
    if why is not None and not is_allowed:
        raise ConfigError(
            f"batch.kind = {batch} with state.kind = {state} is not exactly once: {why}",
            cure="state.kind=opaque; or state.exactly_once=False, if counts may be wrong",
        )


class StateInput(NamedTuple):
    """One input stream of a state."""

    source: str
    stream: str
    fields: Sequence[str]  # of its tuples
    grouping: str = ""  # Storm's name, in upper or lower case; empty: unknown
    by: Sequence[str] = ()  # fields of a fields grouping

    @property
    def is_whole(self) -> bool:
        """Whether one task gets all tuples; True if the grouping is unknown."""
        return self.grouping.upper() in ("", "GLOBAL")


def faults(
    inputs: Sequence[StateInput], keys: Sequence[str], update: Update, tasks: int, *, is_told: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield the problems of a state's inputs, each with a cure.

    Args:
        inputs: all inputs, including those from the coordinator.
        keys: the fields of the key.
        update: the parsed ``state.update``.
        tasks: the number of the state's tasks.
        is_told: whether the state has a coordinator.

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
            f"no input has the stream {unheard[0]}, so the bolt would not receive its batches",
            "coordinator=…, as KafkaBatches.spec returns it",
        )
    wanted = [ATTEMPT, *keys, *([update.field] if update.field else [])]
    for given in inputs:
        if given.stream in CONTROL:
            continue
        if lacking := [field for field in wanted if field not in given.fields]:
            what = f"stream {given.stream!r} of {given.source!r} has no field {', '.join(map(repr, lacking))}"
            handed_on = f"{given.source} must pass on the field {ATTEMPT!r} of its input"
            others = f"one of {', '.join(given.fields)}"
            yield what, handed_on if ATTEMPT in lacking else nearest(lacking[0], given.fields, others)
        elif tasks > 1 and not given.is_whole and not (given.by and set(given.by) <= set(keys)):
            yield (
                f"tuples of one key from {given.source!r} may reach several of its tasks",
                f"inputs={{{given.source}: Grouping.fields({', '.join(map(repr, keys))})}}, or one task",
            )


Change: TypeAlias = Callable[[Commit[Key], Mapping[Key, Any]], Iterable[Sequence[Any]]]
"""Updates the state from the batch, which is given by key, and returns rows."""


class Applied(NamedTuple):
    """The result of a batch."""

    rows: Sequence[Sequence[Any]]
    changed: int = 0  # values that were written


def apply(store: StateStore, kind: StateKind, attempt: Attempt, batch: Mapping[Key, Any], change: Change) -> Applied:
    """Update a state from a batch, in one transaction.

    Raises:
        BatchStoreError: the state cannot be written, or a later attempt was begun.
        ForeignValueError: a stored value is of another kind, or of a later transaction.
    """
    with store.transaction(attempt) as transaction:
        replaced = transaction.replaced()
        stored = _Stored(transaction, {**replaced, **transaction.read(batch)}, batch)
        commit: Commit[Key] = Commit(kind, attempt.txid, stored, replaced)
        rows = list(change(commit, batch))
        changes = commit.changes()
        transaction.write(changes)
    return Applied(rows, len(changes))


def check_beginning(store: StateStore, name: str, txid: int, first: int) -> None:
    """Raise a ConfigError if a state is new although earlier batches exist: it would lack them.

    Args:
        store: the state.
        name: of the state.
        txid: the transaction to apply.
        first: the number of the first transaction of all.
    """
    if txid > first and store.newest() is None:
        raise ConfigError(
            f"{store.location}: state {name} is new, but these batches are already at transaction {txid}: its values "
            "would lack the earlier ones",
            cure="the store and the state.name as before; or another batch.id, so that all is read again; or "
            "state.exactly_once=False, if counts may be wrong",
        )


class _Stored(dict[Key, Any]):
    """Stored forms; a key that was not prefetched is read on first access."""

    def __init__(self, transaction: StateTransaction, known: Mapping[Key, Any], asked: Iterable[Key]) -> None:
        super().__init__(known)
        self._transaction, self._asked = transaction, {*asked, *known}

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the stored form of a key, or ``default``."""
        if key not in self._asked:
            self._asked.add(key)
            self.update(self._transaction.read([key]))
        return super().get(key, default)
