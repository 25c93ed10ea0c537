"""Optional methods of components beyond streamparse's, and services of our engines for components.

All of it is optional: any streamparse component runs on all engines. Components need not import this module: the
engines look up each method by name (:func:`offered`).
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
            died with only this tuple in flight).
        component: the bolt that failed it; empty for a timeout.
        task: that bolt's task id; -1 for a timeout.
        error: class name and message of the exception, if any.
        stack: its traceback as text, if any.
        outage: whether an unavailable service is the cause, not the record. Then ``kind`` is ``"timeout"``, and the
            record is retried without limit.
    """

    kind: str
    component: str = ""
    task: int = -1
    error: str = ""
    stack: str = ""
    outage: bool = False


# --- called by engines ---


class ComponentOffers(Protocol):
    """Optional methods of spouts and bolts. A class may also have these attributes:

    =====================  ====================================================================================
    ``clock``              set by the engine before ``initialize`` (see ``downspout.clock``)
    ``engine_services``    likewise, to SpoutEngine or BoltEngine; None on Storm
    ``settings_scopes``    prefixes of the settings that the class reads
    ``requires``           bolt: fields that each of its input streams must have
    ``stateful``           bolt on Spark: whether it keeps state between batches; by default, the groupings decide
    ``stateful_keys``      bolt on Spark: the name of an attribute with a dict; a batch loads only the keys it uses
    ``retries_failed``     spout: whether it retries failed tuples, until it gives up by itself
    ``can_emit_chunks``    spout: whether ``kafka.emit=chunk`` makes it emit chunks
    =====================  ====================================================================================
    """

    def report(self) -> Mapping[str, float]:
        """Return metrics for the live view and the summary; the names are in ``downspout.metrics``."""

    def report_dead_letters(self) -> Mapping[str, Any]:
        """Return its dead letters (see ``downspout.dead_letters.dead_letter``); empty if it writes none."""

    def report_partitions(self) -> Mapping[str, Mapping[str, Any]]:
        """Return metrics of each partition that it reads, named as in ``downspout.metrics.PARTITION_METRICS``."""

    def close(self) -> None:
        """Release everything; called once at the end of a run."""

    def before_exit(self) -> None:
        """Clean up before the process ends, on Storm (``downspout.wire.multilang_component``)."""


class SpoutOffers(ComponentOffers, Protocol):
    """Optional methods of spouts."""

    def ack_many(self, tup_ids: Sequence[Any]) -> None:
        """Process many acks; called instead of ``ack`` if the class has ``engine_services``."""

    def fail_with(self, tup_id: Any, failure: Failure) -> None:
        """Process a fail with its reason; called instead of ``fail`` by an engine that knows it."""

    def exhausted(self) -> bool:
        """Return whether a bounded run has emitted all records up to its end; acks may be outstanding."""

    def end_reached(self) -> bool:
        """Return whether a bounded run has acked and committed all records up to its end."""

    def waits_for_acks(self) -> bool:
        """Return whether it emits nothing until all tuples in flight are acked; then bolts drain.

        On Storm the spout asks the bolts itself (``downspout.wire.side_streams``).
        """

    def run_timers(self) -> None:
        """Run timers, while enough tuples are in flight or the spout pauses, so ``next_tuple`` is not called."""

    def finish(self) -> bool:
        """Return whether all is committed; called at the end of a run without tuples in flight. May emit tuples."""

    def tried_before(self, tup_id: Any) -> bool:
        """Return whether an earlier run left this tuple undone although it completed later ones."""

    def record_at(self, origin: Any) -> Any:
        """Return the whole record of an origin if it is still in memory, else None."""


class BoltOffers(ComponentOffers, Protocol):
    """Optional methods of bolts."""

    def process_chunk(self, tup: Any) -> None:
        """Process a chunk: ``tup.values`` is a RecordBatch. Bolts without this method receive its records."""

    def process_many(self, tups: list[Any]) -> int:
        """Process tuples up to the first that needs ``process``, which is called for it; return their number."""

    def drain(self) -> None:
        """Write out buffered rows now, without waiting for a tick."""

    def drain_and_wait(self) -> None:
        """Like ``drain``, but return only when all is acked or failed, at the end of a batch (Spark)."""

    def is_waiting(self) -> bool:
        """Return whether its target is unavailable: then spouts pause, and no tuple times out."""

    def drain_at(self) -> float | None:
        """Return when to call ``drain_old``, or else ``drain``, by ``clock``; None: no need."""

    def drain_old(self) -> None:
        """Write out rows that are old enough."""


def offered(component: object, method: Callable[Concatenate[Any, P], R]) -> Callable[P, R] | None:
    """Return a component's version of an optional method; None if it has none.

    A user's method that has the same name by chance, but other parameters, is ignored.

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
    """Return whether a class of bolts has a ``process_chunk`` that matches its ``process`` and ``emit``.

    A subclass that overrides one of those but inherits ``process_chunk`` expects its own method to be called, so it
    receives records.

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
    """Return whether a class of spouts can emit chunks: it declares so, and no subclass overrides its emit."""
    return bool(getattr(cls, "can_emit_chunks", False)) and _stands(cls, "can_emit_chunks", ("next_tuple", "emit"))


def _stands(cls: type, name: str, others: tuple[str, ...]) -> bool:
    """Return whether no subclass of the class that defines ``name`` overrides one of ``others``."""
    return all(_definer(cls, name) <= _definer(cls, other) for other in others)


def _definer(cls: type, name: str) -> int:
    """Return the position of an attribute's class in the method resolution order."""
    return next((at for at, each in enumerate(cls.__mro__) if name in vars(each)), len(cls.__mro__))


def scopes_of(cls: object) -> tuple[str, ...]:
    """Return the prefixes of the settings that a component's class reads."""
    return tuple(getattr(cls, "settings_scopes", ()))


def stateful_keys(cls: object) -> str:
    """Return the attribute whose keys a class of bolts keeps as state on Spark; empty: none.

    >>> class Count:
    ...     stateful_keys = "counts"
    >>> stateful_keys(Count), stateful_keys(object)
    ('counts', '')
    """
    return "" if wrong_stateful_keys(cls) else getattr(cls, "stateful_keys", None) or ""


def wrong_stateful_keys(cls: object) -> str:
    """Return an error about a class's ``stateful_keys``; empty: it is valid."""
    named = getattr(cls, "stateful_keys", None)
    if named is None or (isinstance(named, str) and named.isidentifier()):
        return ""
    return f"stateful_keys = {named!r}, which is not the name of an attribute"


# --- called by components ---


@dataclass(frozen=True)
class SpoutEngine:
    """Services of the local engine for a spout.

    Attributes:
        emit_many: emits a tuple per row to the default stream, each under its message id.
        bolts_with: returns the names of the bolts that hold a tuple or its descendants.
        other_spouts: returns the other spouts of the process.
        free_s: returns the seconds until any other component may run; no ack arrives earlier.
    """

    emit_many: Callable[[Iterable[Sequence[Any]], Iterable[Any]], None]
    bolts_with: Callable[[Any], str] = lambda tup_id: ""
    other_spouts: Callable[[], Sequence[Any]] = lambda: ()
    free_s: Callable[[], float] = lambda: 0.0


@dataclass(frozen=True)
class BoltEngine:
    """Services of the local engine for a bolt; :class:`downspout.component.Bolt` has methods for them.

    Attributes:
        emit_many: emits a tuple per row to the default stream, each anchored to one tuple.
        ack_many: acks tuples, or ids of tuples.
        fail_because: fails one tuple, and passes the reason to the spout.
        record_at: returns the whole record of an origin if a spout of this process has it in memory, else None.
    """

    emit_many: Callable[[Sequence[Sequence[Any]], Sequence[Any]], None]
    ack_many: Callable[[Iterable[Any]], None]
    fail_because: Callable[[Any, Exception], None]
    record_at: Callable[[Any], Any] = lambda origin: None
