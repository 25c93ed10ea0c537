"""The base class of our bolts, and helpers for all components."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import streamparse
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.protocols import BoltEngine, Failure
from downspout.settings.table import component_config
from downspout.wire import MultilangComponent
from downspout.wire.side_streams import FLUSH, TRANSACTIONS
from downspout.wire.specs import OF_SPOUT, RUN, SINKS, WHY_RECORDS, BoltSpec

__all__ = ["FLUSH", "OF_SPOUT", "RUN", "SINKS", "WHY_RECORDS", "Bolt", "Failure", "input_fields", "task_number"]


def input_fields(context: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Return the fields of each input of a bolt, by component and stream, from the context of ``initialize``.

    Storm's ``source->stream->fields`` lists all streams of each component that the bolt reads, including streams it
    does not read (``TopologyContext.getThisInputFields``); ``source->stream->grouping`` has only those it reads.
    Internal streams, Storm's (such as ticks) and ours, are omitted.

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
        if stream in read.get(source, ())
        and stream not in (FLUSH, TRANSACTIONS)
        and not source.startswith("__")
        and not stream.startswith("__")
    }


def task_number(context: Mapping[str, Any]) -> tuple[int, int]:
    """Return the index of this task among its component's tasks, and their number.

    >>> task_number({"taskid": 5, "componentid": "a", "task->component": {"3": "a", "4": "b", "5": "a"}})
    (1, 2)
    """
    names = context.get("task->component") or {}
    component = str(context.get("componentid") or "spout")
    tasks = sorted(int(task) for task, name in names.items() if name == component)
    task = int(context.get("taskid") or 0)
    return (tasks.index(task), len(tasks)) if task in tasks else (0, 1)


class Bolt(MultilangComponent, streamparse.Bolt):
    """Base of the project's bolts: a streamparse bolt with our wire protocol that survives a bad tuple.

    By default, streamparse ends the process when ``process`` raises, so on Storm one bad record restarts a worker.
    Here the tuple fails, the error is reported, and the next tuple is processed.
    """

    exit_on_exception = False
    settings_scopes: ClassVar[tuple[str, ...]] = ()
    requires: ClassVar[tuple[str, ...]] = ()
    clock: Clock = SYSTEM_CLOCK
    engine_services: BoltEngine | None = None
    wants_tick_s: ClassVar[int] = 0
    """Default interval of ticks, in seconds; 0: none."""

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | dict[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> ShellBoltSpec:
        """Add the bolt to a topology.

        Args:
            name: default: the name of the topology's attribute.
            inputs: streamparse's inputs.
            par: how many tasks; default: the class's ``par``.
            config: Storm's settings for this component, and ours by their full keys; default: the class's ``config``.
            settings: ours without the prefix from ``settings_scopes``: ``fields=["carrier"]``.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range.
            TypeError: the bolt has no settings.
        """
        if settings and len(cls.settings_scopes) != 1:
            raise TypeError(f"{cls.__name__}.spec() does not take {', '.join(settings)}")
        if cls.wants_tick_s:
            config = {"topology.tick.tuple.freq.secs": cls.wants_tick_s, **(config or {})}
        for scope in cls.settings_scopes:
            config = {**(config or cls.config or {}), **component_config(scope, settings)}
        return BoltSpec(
            cls,
            command="streamparse_run",
            script=f"{cls.__module__}.{cls.__name__}",
            name=name,
            inputs=inputs,
            par=par,
            config=None if config is None else dict(config),
            outputs=cls.outputs_of(config or {}),
        )

    @classmethod
    def requires_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the fields that each input stream must have; overridden if they depend on settings."""
        return cls.requires

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> Any:
        """Return streamparse's ``outputs``; overridden if they depend on settings."""
        return cls.outputs

    def ack_many(self, tups: Iterable[Any]) -> None:
        """Ack tuples, or ids of tuples; one call on the local engine."""
        if self.engine_services is not None:
            self.engine_services.ack_many(tups)
            return
        for tup in tups:
            self.ack(tup)

    def emit_many(self, rows: Sequence[Sequence[Any]], anchors: Sequence[Any]) -> None:
        """Emit a tuple per row to the default stream, each anchored to one tuple; one call on the local engine.

        Args:
            rows: the values of each tuple.
            anchors: the anchor of each tuple.
        """
        if self.engine_services is not None:
            self.engine_services.emit_many(rows, anchors)
            return
        for row, anchor in zip(rows, anchors, strict=True):
            self.emit(list(row), anchors=[anchor])

    def fail_because(self, tup: Any, error: Exception) -> None:
        """Fail a tuple with a reason, without raising; the local engine passes it to the spout."""
        if self.engine_services is not None:
            self.engine_services.fail_because(tup, error)
            return
        self.logger.error("%s", error)
        self.fail(tup)
