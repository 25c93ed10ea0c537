"""A stateful bolt between two batches: what its instance holds, as bytes.

The bolt is unmodified, so its state is whatever attributes it has set: a Counter, a dict of windows. What pystorm and
the engine have set is not part of it. What cannot be pickled and is still the object that ``initialize`` made (a
connection, a logger) is made again by the next ``initialize``; of anything else that cannot be pickled, the name is
said.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from functools import lru_cache
from typing import Any

from downspout.engine.task import construct
from downspout.errors import ComponentError
from downspout.spark.topology.rows import dump

_LIBRARIES = ("pystorm.", "streamparse.", "downspout.component", "downspout.wire")
_MADE_BY_ENGINE = frozenset((
    "ack", "clock", "emit", "engine_services", "fail", "logger", "process_batch", "raise_exception", "serializer",
))  # fmt: skip


def attributes(instance: Any) -> dict[str, Any]:
    """Return what the user's class has set on an instance."""
    stock = _stock_names(next(cls for cls in type(instance).__mro__ if cls.__module__.startswith(_LIBRARIES)))
    return {name: value for name, value in vars(instance).items() if name not in stock}


def separate(instance: Any) -> None:
    """Give an instance its own copies of what its class holds and can change: ``counts = Counter()`` in its body."""
    # On Storm each task is a process, and has that for itself. Here one process runs many tasks, and each batch many
    # times over.
    for name, value in _class_values(type(instance)):
        vars(instance).setdefault(name, copy.deepcopy(value))


def _class_values(cls: Any) -> Iterator[tuple[str, Any]]:
    stock = next(base for base in cls.__mro__ if base.__module__.startswith(_LIBRARIES))
    for name in dir(cls):
        value = None if name.startswith("__") or hasattr(stock, name) else getattr(cls, name)
        if isinstance(value, MutableMapping | MutableSequence | MutableSet):
            yield name, value


def _is_the_class_s(instance: Any, name: str, value: Any) -> bool:
    """Return whether a value is as the class has it; then it is the class's to change, with a new version of it."""
    try:
        return bool(value == dict(_class_values(type(instance)))[name])
    except Exception:  # it has none of that name, or whatever __eq__ raises
        return False


@lru_cache
def _stock_names(cls: Any) -> frozenset[str]:
    """Return what an instance of a library's class has."""
    return frozenset(vars(construct(cls))) | _MADE_BY_ENGINE


def save(name: str, instance: Any, fresh: Mapping[str, Any], by_key: str = "") -> bytes:
    """Return the state of a bolt, whose attributes were ``fresh`` when it was initialized; without one kept by key."""
    found = {attribute: value for attribute, value in attributes(instance).items() if attribute != by_key}
    held = {key: value for key, value in found.items() if not _is_the_class_s(instance, key, value)}
    try:
        return dump(held)
    except Exception:  # whatever __reduce__ raises; it is found below, attribute by attribute
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
