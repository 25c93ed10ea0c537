"""What a component may offer to the engines beyond streamparse's own methods, and the base of our bolts.

The engines run any streamparse component. They look for the *optional* methods below by name, so a
user's component can have them without importing this module, and ours run on Storm, where nobody calls them.

======================================  ==================================================================
attribute                               who uses it, and for what
======================================  ==================================================================
``clock``                               the engine sets it before ``initialize`` (see ``downspout.clock``)
``stateful``                            bolt on Spark: whether what it holds outlives a batch; not said, groupings tell
``settings_scopes``                     ``downspout check``: prefixes of the settings that the class reads
``requires``                            bolt: fields that each of its input streams must have
``fail_with(tup_id, failure)``          spout: called instead of ``fail`` where the reason is known
``exhausted()``                         spout in a bounded run: all was emitted, acks are outstanding
``end_reached()``                       spout in a bounded run: all was acked and committed
``waits_for_acks()``                    spout: a hand-over waits for what is out; the engine lets the bolts drain
``process_chunk(tup)``                  bolt: takes a chunk, a RecordBatch in ``tup.values``; others get its records
``process_many(tups)``                  bolt: takes many tuples, see ``downspout.local.many``; others get one by one
``ack_many(tup_ids)``                   spout: called instead of ``ack`` for many
``emit_many(rows, tup_ids)``            spout: the engine puts its own here
``drain()``                             bolt: write out what you hold now, do not wait for a tick
``drain_at()``                          bolt: when it wants ``drain`` to be called, by its clock; None: not now
``fail_because(tup, error)``            bolt: the engine puts its own here, so that the spout learns the reason
``attend()``                            spout: called now and then while enough is out and ``next_tuple`` is not called
``whereabouts(tup_id)``                 spout: the engine puts its own here, which tells the bolts that have a tuple
``retries_failed``                      spout: whether what fails comes again, so that nobody need finish it
``neighbours``                          spout: the engine puts the other spouts of the process here
``report()``                            both: figures for the live view and the summary
``close()``                             both: called once at the end of a run
``before_exit()``                       both, on Storm: called before the process ends (``downspout.wire``)
======================================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import streamparse
from streamparse.dsl.bolt import ShellBoltSpec

from downspout import config as configuration
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.wire import Wired
from downspout.wire.specs import BoltSpec


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
    """

    kind: str
    component: str = ""
    task: int = -1
    error: str = ""
    stack: str = ""


@runtime_checkable
class Explains(Protocol):
    """A spout that wants to know why a tuple failed."""

    def fail_with(self, tup_id: Any, failure: Failure) -> None:
        """Take a fail with its reason."""


@runtime_checkable
class Bounded(Protocol):
    """A spout that can end: it knows how far "the end as of the start" is."""

    def exhausted(self) -> bool:
        """Return whether everything up to the end was emitted."""

    def end_reached(self) -> bool:
        """Return whether everything up to the end was acked and committed."""


@runtime_checkable
class Drains(Protocol):
    """A bolt that holds tuples back and can be asked to let go of them."""

    def drain(self) -> None:
        """Write out and ack whatever is held."""


@runtime_checkable
class Reports(Protocol):
    """A component with figures of its own for the live view."""

    def report(self) -> Mapping[str, float]:
        """Return named figures; the names are in ``downspout.metrics``."""


def input_fields(context: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Return the fields of each input of a bolt, by component and stream, from what ``initialize`` is given.

    Storm lists in ``source->stream->fields`` every stream of each component that the bolt reads, those that it does not
    read too (``TopologyContext.getThisInputFields``); which it does read is in ``source->stream->grouping``. Storm's
    own streams, ticks for one, are left out.

    >>> fields = {"parse": {"default": ["word"], "rejects": ["value"]}, "__system": {"__tick": ["rate_secs"]}}
    >>> grouping = {"parse": {"default": {"type": "SHUFFLE"}}}
    >>> input_fields({"source->stream->fields": fields, "source->stream->grouping": grouping})
    {('parse', 'default'): ['word']}
    """
    known = context.get("source->stream->fields", {})
    read = context.get("source->stream->grouping", known)
    return {
        (source, stream): list(fields)
        for source, streams in known.items()
        for stream, fields in streams.items()
        if stream in read.get(source, ()) and not source.startswith("__") and not stream.startswith("__")
    }


class Bolt(Wired, streamparse.Bolt):
    """Base of the project's bolts: a streamparse bolt on our wire that goes on after a bad tuple.

    streamparse's default ends the process when ``process`` raises, which on Storm restarts a worker for one bad
    record. Here the tuple fails, the error is reported, and the next tuple is processed.
    """

    exit_on_exception = False
    settings_scopes: ClassVar[tuple[str, ...]] = ()
    requires: ClassVar[tuple[str, ...]] = ()
    clock: Clock = SYSTEM_CLOCK
    wants_tick_s: ClassVar[int] = 0
    """How often it wants a tick, in seconds, where its config does not say; 0: never."""

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> ShellBoltSpec:
        """Put the bolt into a topology.

        Args:
            name: default: the name of the topology's attribute.
            inputs: streamparse's inputs.
            par: how many tasks; default: the class's ``par``.
            config: Storm's settings for this component, and ours by their whole names; default: the class's ``config``.
            settings: ours without the prefix that ``settings_scopes`` names: ``fields=["carrier"]``.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range.
            TypeError: settings are given to a bolt that has none.
        """
        if settings and len(cls.settings_scopes) != 1:
            raise TypeError(f"{cls.__name__}.spec() takes no {', '.join(settings)}")
        if cls.wants_tick_s:
            config = {"topology.tick.tuple.freq.secs": cls.wants_tick_s, **(config or {})}
        for scope in cls.settings_scopes:
            config = {**(config or cls.config or {}), **configuration.component_config(scope, settings)}
        return BoltSpec(
            cls,
            command="streamparse_run",
            script=f"{cls.__module__}.{cls.__name__}",
            name=name,
            inputs=inputs,
            par=par,
            config=config,
            outputs=cls.outputs_of(config or {}),
        )

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> Any:
        """Return streamparse's ``outputs``. A bolt whose fields depend on its settings overrides this."""
        return cls.outputs

    def ack_many(self, tups: Iterable[Any]) -> None:
        """Ack tuples, or ids of tuples; the local engine puts its own here, which is one call for all."""
        for tup in tups:
            self.ack(tup)

    def emit_many(self, rows: Sequence[Sequence[Any]], anchors: Sequence[Any]) -> None:
        """Emit a tuple of each row to the default stream, each anchored to one tuple; in the local engine by one call.

        Args:
            rows: the values of each tuple.
            anchors: as many tuples.
        """
        for row, anchor in zip(rows, anchors, strict=True):
            self.emit(list(row), anchors=[anchor])

    def fail_because(self, tup: Any, error: Exception) -> None:
        """Fail one tuple and say why, without raising; the local engine puts its own here, which tells the spout."""
        self.logger.error("%s", error)
        self.fail(tup)
