"""What a StateBolt does with a batch: its inputs, the key of a tuple, what a tuple does to a value, and the commit.

``state.update`` says what the tuples of a key become:

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

from downspout.batches.core.protocol import ATTEMPT, CONTROL, Attempt
from downspout.batches.core.state_values import Commit, StateKind
from downspout.batches.stores import Key, StateStore, StateTransaction
from downspout.errors import ConfigError
from downspout.formatting import nearest
from downspout.settings.table import SETTINGS, load

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
            raise TypeError(f"{self.field} = {value!r} is not a number, and cannot be added up")
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


OTHERS = "a repeated batch may hold other records"
AGAIN = "a repeated batch is applied again"
NOT_EXACT = {
    ("opaque", "transactional"): OTHERS,
    ("opaque", "non_transactional"): AGAIN,
    ("transactional", "non_transactional"): AGAIN,
}
"""``batch.kind`` and ``state.kind`` → why they are not exactly once. All other pairs are."""


def check_pair(conf: Mapping[str, Any]) -> None:
    """Raise a ConfigError where a state would not hold each record exactly once, and nobody has allowed that.

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
"""Is given the state and the batch by key; changes the one by the other, and returns rows."""


class Applied(NamedTuple):
    """What became of a batch."""

    rows: Sequence[Sequence[Any]]
    changed: int = 0  # values that were written


def apply(store: StateStore, kind: StateKind, attempt: Attempt, batch: Mapping[Key, Any], change: Change) -> Applied:
    """Change a state by a batch, in one transaction.

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
    """Raise a ConfigError where a state is new, and batches before this one are in no state of that name.

    Args:
        store: the state.
        name: of the state.
        txid: the transaction that is to be applied.
        first: the number of the first transaction that there ever is.
    """
    if txid > first and store.newest() is None:
        raise ConfigError(
            f"{store.location}: state {name} is new, but these batches are already at transaction {txid}: its values "
            "would lack the earlier ones",
            cure="the store and the state.name as before; or another batch.id, so that all is read again; or "
            "state.exactly_once=False, if counts may be wrong",
        )


class _Stored(dict[Key, Any]):
    """Stored forms; a key that was not asked for beforehand is read when it is looked at."""

    def __init__(self, transaction: StateTransaction, known: Mapping[Key, Any], asked: Iterable[Key]) -> None:
        super().__init__(known)
        self._transaction, self._asked = transaction, {*asked, *known}

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the stored form of a key; ``default``: there is none."""
        if key not in self._asked:
            self._asked.add(key)
            self.update(self._transaction.read([key]))
        return super().get(key, default)
