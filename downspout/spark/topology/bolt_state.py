"""The state of a stateful bolt between two batches, as bytes.

The bolt is unmodified, so its state consists of its attributes: a Counter, a dict of windows. Attributes set by pystorm
or the engine are excluded. If an attribute cannot be pickled but is still the object that ``initialize`` created (a
connection, a logger), the next ``initialize`` creates it again; any other such attribute is an error that names it.

**State by key.** If ``stateful_keys`` names a dict, a batch loads and stores only the keys it uses. The bolt sees a
dict of the same type. A key is read from Spark's state at its first lookup in a batch; at the end of the batch, values
that differ from those read are written, including values changed in place. Operations that need all keys, such as a
loop or ``len``, read them all; from then on it is an ordinary dict.

A key is identified by its text (:func:`text_of`), because equal keys may have different pickles. The entry holds key
and value, pickled.
"""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from downspout.engine.task import construct
from downspout.errors import ComponentError
from downspout.spark.topology.stage_rows import dump

_LIBRARIES = ("pystorm.", "streamparse.", "downspout.component", "downspout.wire")
_MADE_BY_ENGINE = frozenset((
    "ack", "clock", "emit", "engine_services", "fail", "logger", "process_batch", "raise_exception", "serializer",
))  # fmt: skip


def attributes(instance: Any) -> dict[str, Any]:
    """Return the attributes that the user's class has set on an instance."""
    stock = _stock_names(next(cls for cls in type(instance).__mro__ if cls.__module__.startswith(_LIBRARIES)))
    return {name: value for name, value in vars(instance).items() if name not in stock}


def separate(instance: Any) -> None:
    """Give an instance its own copies of mutable class attributes, such as ``counts = Counter()`` in the class body."""
    # On Storm each task is a process with its own class. Here one process runs many tasks, and each of them again for
    # every batch.
    for name, value in _class_values(type(instance)):
        vars(instance).setdefault(name, copy.deepcopy(value))


def _class_values(cls: Any) -> Iterator[tuple[str, Any]]:
    stock = next(base for base in cls.__mro__ if base.__module__.startswith(_LIBRARIES))
    for name in dir(cls):
        value = None if name.startswith("__") or hasattr(stock, name) else getattr(cls, name)
        if isinstance(value, MutableMapping | MutableSequence | MutableSet):
            yield name, value


def _is_the_class_s(instance: Any, name: str, value: Any) -> bool:
    """Return whether a value equals the class attribute; it is not stored then, so new code can change it."""
    try:
        return bool(value == dict(_class_values(type(instance)))[name])
    except Exception:  # no such class attribute, or any error of __eq__
        return False


@lru_cache
def _stock_names(cls: Any) -> frozenset[str]:
    """Return the names of the attributes that pystorm and the engine set."""
    return frozenset(vars(construct(cls))) | _MADE_BY_ENGINE


def save(name: str, instance: Any, fresh: Mapping[str, Any], by_key: str = "") -> bytes:
    """Return the state of a bolt without the attribute kept by key; ``fresh``: its attributes after ``initialize``."""
    found = {attribute: value for attribute, value in attributes(instance).items() if attribute != by_key}
    held = {key: value for key, value in found.items() if not _is_the_class_s(instance, key, value)}
    try:
        return dump(held)
    except Exception:  # __reduce__ may raise anything; the attribute is identified below
        pass
    for attribute, value in list(held.items()):
        try:
            dump(value)
        except Exception as error:
            if attribute not in fresh or fresh[attribute] is not value:
                what = f"{name}: its attribute {attribute} ({type(value).__name__})"
                raise ComponentError(
                    f"{what} cannot be kept between batches: {error}",
                    cure="make it in initialize, or give its class __getstate__ and __setstate__",
                ) from error
            del held[attribute]
    return dump(held)


def restore(instance: Any, state: bytes) -> None:
    """Give an initialized bolt the state that :func:`save` returned."""
    vars(instance).update(pickle.loads(state))


# --- state by key ---

KEY_SCHEMA, ENTRY_SCHEMA = "key string", "entry binary"
_PLAIN = (str, bytes, int, type(None))


class Entries(Protocol):
    """The methods used of Spark's MapState."""

    def getValue(self, key: tuple[str]) -> tuple[bytes] | None:
        """Return an entry, if any."""

    def updateValue(self, key: tuple[str], value: tuple[bytes]) -> None:
        """Set an entry."""

    def removeKey(self, key: tuple[str]) -> None:
        """Remove an entry."""

    def values(self) -> Iterable[tuple[bytes]]:
        """Return all entries."""

    def clear(self) -> None:
        """Remove all entries."""


def text_of(key: Any) -> str:
    """Return a text that is the same for equal keys only.

    Raises:
        TypeError: keys of this type are not supported.

    >>> text_of("a"), text_of(("a", 1)), text_of(1.0) == text_of(True) == text_of(1)
    ("'a'", "('a', 1)", True)
    """
    return ascii(_plain(key))


def _plain(key: Any) -> Any:
    if type(key) in _PLAIN:
        return key
    if isinstance(key, tuple):
        return tuple(map(_plain, key))
    if isinstance(key, float):
        return int(key) if key.is_integer() else float(key)
    # A bool, an Enum's member: equal to the plain value.
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bytes | int):
        return bytes(key) if isinstance(key, bytes) else int(key)
    raise TypeError(f"{key!r} is of type {type(key).__name__}")


class Stored:
    """Spark's state of a mapping, and which of its entries were read."""

    def __init__(self, name: str, entries: Entries, empty: dict[Any, Any]) -> None:
        self.name, self.empty = name, empty
        self.seen: dict[Any, bytes | None] = {}  # entries of the keys that were looked up; None: missing
        self.whole = False  # whether all entries were read
        self.is_cleared = False
        self.error: ComponentError | None = None  # for an unsupported key; ends the run, as no record is to blame
        self._entries = entries

    def read(self, key: Any) -> bytes | None:
        """Return a key's entry."""
        found = self._entries.getValue((self._text_of(key),))
        return None if found is None else bytes(found[0])

    def read_all(self) -> Iterator[bytes]:
        """Yield all entries."""
        return (bytes(found[0]) for found in self._entries.values())

    def write(self, mapping: dict[Any, Any]) -> None:
        """Write the entries that differ from those read."""
        if self.is_cleared:
            self._entries.clear()
            self.seen.clear()
        for key, value in dict.items(mapping):
            try:
                entry = dump((key, value))
            except Exception as error:  # __reduce__ may raise anything
                what = f"{self.name}[{key!r}] ({type(value).__name__})"
                raise ComponentError(
                    f"{what} cannot be kept between batches: {error}",
                    cure="a value that can be pickled",
                ) from error
            if self.seen.get(key) != entry:
                self._entries.updateValue((self._text_of(key),), (entry,))
        for key, known in self.seen.items():
            if known is not None and not dict.__contains__(mapping, key):
                self._entries.removeKey((self._text_of(key),))

    def _text_of(self, key: Any) -> str:
        try:
            return text_of(key)
        except TypeError as error:
            self.error = self.error or ComponentError(
                f"{self.name}: its key {error}, but stateful_keys takes text, bytes, numbers, None and tuples of these",
                cure="another key, such as str(key)",
            )
            raise self.error from None


if TYPE_CHECKING:
    _Dict = dict[Any, Any]
else:
    _Dict = object  # _keyed_type adds the type of the bolt's own dict as the second base


class Keyed(_Dict):
    """A dict that reads a key when it is looked up."""

    _stored: Stored

    def _look(self, key: Any) -> None:
        stored = self._stored
        if stored.whole or dict.__contains__(self, key) or key in stored.seen:
            return
        entry = stored.seen[key] = stored.read(key)
        if entry is not None:
            dict.__setitem__(self, *pickle.loads(entry))

    def _look_at_all(self) -> None:
        stored = self._stored
        if stored.whole:
            return
        stored.whole = True
        for entry in stored.read_all():
            key, value = pickle.loads(entry)
            if key not in stored.seen:
                stored.seen[key] = entry
                dict.setdefault(self, key, value)

    def __getitem__(self, key: Any) -> Any:
        self._look(key)
        return super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        self._look(key)
        return super().__contains__(key)

    def __delitem__(self, key: Any) -> None:
        self._look(key)
        super().__delitem__(key)
        self._gone(key)

    def _gone(self, key: Any) -> None:
        # A key that was set without a lookup may be in the state.
        if not self._stored.whole:
            self._stored.seen.setdefault(key, b"")

    def get(self, key: Any, default: Any = None) -> Any:
        """See dict."""
        self._look(key)
        return super().get(key, default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """See dict."""
        self._look(key)
        return super().setdefault(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        """See dict."""
        self._look(key)
        value = super().pop(key, *default)
        self._gone(key)
        return value

    def popitem(self) -> tuple[Any, Any]:
        """See dict."""
        self._look_at_all()
        return super().popitem()

    def clear(self) -> None:
        """See dict; nothing is read."""
        super().clear()
        self._stored.whole = self._stored.is_cleared = True

    def copy(self) -> Any:
        """Return a plain copy with all keys."""
        plain = copy.copy(self._stored.empty)
        dict.update(plain, self.items())
        return plain

    __copy__ = copy

    def __reduce__(self) -> Any:
        return _same, (self.copy(),)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __len__(self) -> int:
        self._look_at_all()
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        self._look_at_all()
        return super().__iter__()

    def __reversed__(self) -> Iterator[Any]:
        self._look_at_all()
        return super().__reversed__()

    def keys(self) -> Any:
        """See dict."""
        self._look_at_all()
        return super().keys()

    def values(self) -> Any:
        """See dict."""
        self._look_at_all()
        return super().values()

    def items(self) -> Any:
        """See dict."""
        self._look_at_all()
        return super().items()

    def __eq__(self, other: object) -> bool:
        self._look_at_all()
        return bool(super().__eq__(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()


def _same(value: Any) -> Any:
    return value


@lru_cache
def _keyed_type(kind: type[dict[Any, Any]]) -> Any:
    return type(f"Keyed{kind.__name__}", (Keyed, kind), {})


def keep_by_key(name: str, instance: Any, attribute: str, entries: Entries, *, is_new: bool) -> Stored:
    """Replace an initialized bolt's dict by one that reads and writes Spark's state.

    Args:
        name: the bolt's.
        instance: the bolt.
        attribute: the one that ``stateful_keys`` names.
        entries: the state.
        is_new: whether the task has no state yet; if so, it starts with the entries that ``initialize`` has made.

    Raises:
        ComponentError: the bolt has no dict of that name.
    """
    own = vars(instance).get(attribute)
    if not isinstance(own, dict) or isinstance(own, OrderedDict):
        what = "does not exist" if own is None else f"is {type(own).__name__}"
        raise ComponentError(
            f"{name}: stateful_keys names {attribute!r}, but that {what} after initialize",
            cure=f"self.{attribute} = {{}} in initialize; a Counter or a defaultdict works too",
        )
    empty = copy.copy(own)
    empty.clear()
    kind = _keyed_type(type(own))
    mapping = kind.__new__(kind)
    mapping.__dict__.update(getattr(own, "__dict__", {}))
    if (factory := getattr(own, "default_factory", None)) is not None:
        mapping.default_factory = factory
    mapping._stored = stored = Stored(f"{name}.{attribute}", entries, empty)
    if is_new:
        dict.update(mapping, own)
    setattr(instance, attribute, mapping)
    return stored


def write_keys(instance: Any, attribute: str, stored: Stored) -> None:
    """Write the changes of a batch. If the bolt has replaced its dict, the new one becomes the whole state.

    Raises:
        ComponentError: a key or value cannot be stored.
    """
    mapping = vars(instance).get(attribute, {})
    if stored.error is not None:
        raise stored.error
    if not isinstance(mapping, dict):
        raise ComponentError(
            f"{stored.name} is {type(mapping).__name__}, but stateful_keys names a dict", cure=f"a dict in {attribute}"
        )
    if twins := [name for name, value in vars(instance).items() if value is mapping and name != attribute]:
        raise ComponentError(
            f"{stored.name} is {twins[0]} too, so it would be kept whole", cure="the dict in one attribute alone"
        )
    if getattr(mapping, "_stored", None) is not stored:
        stored.is_cleared = True
    stored.write(mapping)
