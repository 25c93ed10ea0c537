"""What a component may offer an engine beyond streamparse's own methods, and what an engine of ours does for it.

Nothing of this is needed: any streamparse component runs on all engines. Nor does a component have to import this
module. The engines look each member up by its name (:func:`offered`), so a class offers a method by having it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "BoltEngine", "BoltOffers", "ComponentOffers", "Failure", "SpoutEngine", "SpoutOffers", "emits_chunks", "offered",
    "offers", "scopes_of", "stateful_keys", "takes_chunks", "wrong_stateful_keys",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a tuple tree failed, as far as the engine knows.

    Attributes:
        kind: ``"fail"`` (a bolt failed it), ``"exception"`` (a bolt raised), ``"timeout"`` or ``"crash"`` (the process
            died, and nothing else was out).
        component: the bolt that failed it; empty for a timeout.
        task: that bolt's task id; -1 for a timeout.
        error: class name and message of the exception, where there is one.
        stack: its traceback as text, where there is one.
        outage: whether it is the fault of a service that was away, and not of the record; then it is a ``"timeout"``,
            and the record is tried again without end.
    """

    kind: str
    component: str = ""
    task: int = -1
    error: str = ""
    stack: str = ""
    outage: bool = False


# --- what an engine calls ---


class ComponentOffers(Protocol):
    """Optional methods of spouts and bolts. A class may also have these attributes:

    =====================  ====================================================================================
    ``clock``              an engine sets it before ``initialize`` (see ``downspout.clock``)
    ``engine_services``    likewise, to SpoutEngine or BoltEngine; None on Storm
    ``settings_scopes``    prefixes of the settings that the class reads
    ``requires``           bolt: fields that each of its input streams must have
    ``stateful``           bolt on Spark: whether what it holds outlives a batch; without it, the groupings decide
    ``stateful_keys``      bolt on Spark: the name of an attribute, a dict of which a batch reads and writes only the
                           keys that it touches
    ``retries_failed``     spout: whether it emits again what failed, until it gives up by itself
    ``can_emit_chunks``    spout: whether ``kafka.emit=chunk`` makes it emit chunks
    =====================  ====================================================================================
    """

    def report(self) -> Mapping[str, float]:
        """Return metrics for the live view and the summary; the names are in ``downspout.metrics``."""

    def report_dead_letters(self) -> Mapping[str, Any]:
        """Return what it has dead-lettered: see ``downspout.dead_letters.dead_letter``; empty where nothing can be."""

    def report_partitions(self) -> Mapping[str, Mapping[str, Any]]:
        """Return where it stands in each partition that it reads; ``downspout.metrics.PARTITION_METRICS`` has names."""

    def close(self) -> None:
        """Release everything; called once at the end of a run."""

    def before_exit(self) -> None:
        """On Storm: finish before the process ends (``downspout.wire.multilang``)."""


class SpoutOffers(ComponentOffers, Protocol):
    """Optional methods of spouts."""

    def ack_many(self, tup_ids: Sequence[Any]) -> None:
        """Take many acks; called instead of ``ack`` where the class has ``engine_services``."""

    def fail_with(self, tup_id: Any, failure: Failure) -> None:
        """Take a fail with its reason; called instead of ``fail`` by an engine that knows it."""

    def exhausted(self) -> bool:
        """Return whether a bounded run has emitted everything up to its end; acks may be outstanding."""

    def end_reached(self) -> bool:
        """Return whether a bounded run has everything up to its end acked and committed."""

    def waits_for_acks(self) -> bool:
        """Return whether it emits nothing until what is out is acked; then bolts drain.

        On Storm the spout asks the bolts itself (``downspout.wire.side_streams``).
        """

    def run_timers(self) -> None:
        """Look at your timers: ``next_tuple`` is not called, since enough is out or the spout rests."""

    def finish(self) -> bool:
        """Return whether all is committed; called while a run ends and nothing is out. May emit what is needed."""

    def tried_before(self, tup_id: Any) -> bool:
        """Return whether an earlier run left this tuple behind while later ones got through."""

    def record_at(self, origin: Any) -> Any:
        """Return the whole record of an origin, as it was read, while it is in memory; else None."""


class BoltOffers(ComponentOffers, Protocol):
    """Optional methods of bolts."""

    def process_chunk(self, tup: Any) -> None:
        """Take a chunk: ``tup.values`` is a RecordBatch. Other bolts get its records."""

    def process_many(self, tups: list[Any]) -> int:
        """Process the first of these, as many as are plain; return how many those were.

        The next one goes to ``process``, which says what is odd about it.
        """

    def drain(self) -> None:
        """Write out what you hold; do not wait for a tick."""

    def drain_and_wait(self) -> None:
        """Do as ``drain``, and settle all of it before you return: the batch of an engine ends (Spark)."""

    def is_waiting(self) -> bool:
        """Return whether what it writes to is away: then spouts rest, and no tuple times out."""

    def drain_at(self) -> float | None:
        """Return when ``drain_old`` is to be called, or ``drain``, by ``clock``; None: not now."""

    def drain_old(self) -> None:
        """Write out what is old enough: nobody waits for the rest."""


def offered(component: object, method: Callable[Concatenate[Any, P], R]) -> Callable[P, R] | None:
    """Return a component's own version of an optional method; None where it has none.

    A user's component may happen to have a method of the same name that takes other arguments. It is not ours to call.

    >>> class Sink:
    ...     def drain(self): ...
    ...     def report(self, to): ...
    >>> offered(Sink(), BoltOffers.drain) is None, offered(Sink(), BoltOffers.report) is None
    (False, True)
    """
    found: Callable[P, R] | None = getattr(component, method.__name__, None)
    if not callable(found):
        return None
    arguments = len(inspect.signature(method).parameters) - 1
    try:
        inspect.signature(found).bind(*[None] * arguments)
    except (TypeError, ValueError):
        return None
    return found


def offers(cls: object, method: Callable[..., Any]) -> bool:
    """Return whether a class has an optional method."""
    return callable(getattr(cls, method.__name__, None))


def takes_chunks(cls: type) -> bool:
    """Return whether a class of bolts has a ``process_chunk`` that does what its ``process`` and its ``emit`` do.

    A subclass that overrides one of those two, and inherits ``process_chunk``, means its own method to be called. It is
    given records.

    >>> class Parse:
    ...     def process(self, tup): ...
    ...     def process_chunk(self, tup): ...
    >>> class Louder(Parse):
    ...     def process(self, tup): ...
    >>> takes_chunks(Parse), takes_chunks(Louder)
    (True, False)
    """
    return offers(cls, BoltOffers.process_chunk) and _stands(cls, "process_chunk", ("process", "emit"))


def emits_chunks(cls: type) -> bool:
    """Return whether a class of spouts can emit chunks: it says so, and no subclass has an emit of its own."""
    return bool(getattr(cls, "can_emit_chunks", False)) and _stands(cls, "can_emit_chunks", ("next_tuple", "emit"))


def _stands(cls: type, name: str, others: tuple[str, ...]) -> bool:
    """Return whether no subclass of the class that defines an attribute overrides one of these others."""
    return all(_definer(cls, name) <= _definer(cls, other) for other in others)


def _definer(cls: type, name: str) -> int:
    """Return how far up a class's ancestors an attribute is defined."""
    return next((at for at, each in enumerate(cls.__mro__) if name in vars(each)), len(cls.__mro__))


def scopes_of(cls: object) -> tuple[str, ...]:
    """Return the prefixes of the settings that a component's class reads."""
    return tuple(getattr(cls, "settings_scopes", ()))


def stateful_keys(cls: object) -> str:
    """Return the attribute that a class of bolts keeps by key on Spark; empty: none.

    >>> class Count:
    ...     stateful_keys = "counts"
    >>> stateful_keys(Count), stateful_keys(object)
    ('counts', '')
    """
    return "" if wrong_stateful_keys(cls) else getattr(cls, "stateful_keys", None) or ""


def wrong_stateful_keys(cls: object) -> str:
    """Return what is wrong with a class's ``stateful_keys``; empty: nothing."""
    named = getattr(cls, "stateful_keys", None)
    if named is None or (isinstance(named, str) and named.isidentifier()):
        return ""
    return f"stateful_keys = {named!r}, which is not the name of an attribute"


# --- what a component calls ---


@dataclass(frozen=True)
class SpoutEngine:
    """What the local engine does for a spout.

    Attributes:
        emit_many: emits a tuple per row to the default stream, each under its message id.
        bolts_with: returns the names of the bolts that have a tuple, or what came of it.
        other_spouts: returns the other spouts of the process.
        free_s: returns the seconds until anything but this spout may have something to do: acks come no earlier.
    """

    emit_many: Callable[[Iterable[Sequence[Any]], Iterable[Any]], None]
    bolts_with: Callable[[Any], str] = lambda tup_id: ""
    other_spouts: Callable[[], Sequence[Any]] = lambda: ()
    free_s: Callable[[], float] = lambda: 0.0


@dataclass(frozen=True)
class BoltEngine:
    """What the local engine does for a bolt; :class:`downspout.component.Bolt` has methods for it.

    Attributes:
        emit_many: emits a tuple per row to the default stream, each anchored to one tuple.
        ack_many: acks tuples, or ids of tuples.
        fail_because: fails one tuple, and tells the spout why.
        record_at: returns the whole record of an origin, if a spout of the process has it in memory; else None.
    """

    emit_many: Callable[[Sequence[Sequence[Any]], Sequence[Any]], None]
    ack_many: Callable[[Iterable[Any]], None]
    fail_because: Callable[[Any, Exception], None]
    record_at: Callable[[Any], Any] = lambda origin: None
