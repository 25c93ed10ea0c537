"""Rerun a topology on a few records, to learn which rows it makes of them.

``downspout.testing.harness`` runs it, with an in-memory Kafka that holds the records at their own offsets; the command
line passes it in. Each sink of the topology is replaced by a bolt that records origins and writes nothing. Bolts
upstream of the sink run unchanged and must be deterministic per record, as exactly-once requires anyway; other bolts do
not run. The inputs of the sink keep the tags in its directory.

**A child process** runs the topology, so a record that kills it does not end the audit. The process is restarted after
each death, and its records are halved until the fatal one is isolated: one death per halving, about eleven of a second
or two for the 2,000 records of a batch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa

from downspout.audit.expected import Failed
from downspout.component import Bolt
from downspout.dead_letters.dead_letter import DeadLetter
from downspout.engine.graph import Graph
from downspout.engine.load import load
from downspout.engine.settings import Settings, dead_letter_topics, reads
from downspout.engine.settings import resolve as settings_of
from downspout.errors import DownspoutError, TopologyError, coordinates
from downspout.formatting import counted
from downspout.kafka.port import Record
from downspout.ledger.origin import Origin
from downspout.settings.object_path import place as folder
from downspout.sink.identity import check_names, name_of, resolve, with_step
from downspout.sink.log import CommitLog
from downspout.sink.notes import Run
from downspout.sink.object_store import storage_of
from downspout.sink.row_sink import RowSink
from downspout.sink.schema import failing
from downspout.system.process import end_with_parent

Steps = Mapping[tuple[str, str, str], str]
"""By input of a sink, as (sink, component, stream), the tag at the end of its rows' paths."""

RunOn = Callable[[Graph, type[Bolt], Sequence[Record]], Iterable[DeadLetter]]
"""Runs a topology, with another class for its sinks, on records at their own offsets; returns the dead letters."""


@dataclass(frozen=True)
class TopologyReplay:
    """A :data:`~downspout.audit.expected.Replay` of one topology for one of its directories."""

    graph: Graph  # the topology, with its settings
    steps: Steps  # of the sink that writes to the directory
    dead_letters: tuple[str, ...]  # the dead-letter topics of its Kafka spouts
    topics: tuple[str, ...]  # the topics that spouts upstream of the sink read
    patterns: tuple[str, ...]  # their ``kafka.pattern`` settings
    run_on: RunOn
    read_back: Callable[[Path], pa.Table | None]  # of the sink's class

    @property
    def several(self) -> bool:
        """Whether a record may have a row through each of several inputs."""
        return len(self.steps) > 1

    def __call__(self, records: Sequence[Record]) -> Mapping[tuple[str, int, int], Iterable[str] | Failed]:
        """Rerun the topology on the records; return the paths that reach the sink, and the failures."""
        seen: dict[tuple[str, int, int], list[str]] = {}
        steps = self.steps

        class Notes(Bolt):
            """Replaces a sink."""

            def process(self, tup: Any) -> None:
                """Record the tuple's origin; ``steps`` lacks inputs without one."""
                step = steps.get((self.component_name, tup.component, tup.stream))
                if step is not None:
                    origin = Origin.of(tup.values.origin)
                    place = (origin.topic, origin.partition, origin.offset)
                    seen.setdefault(place, []).append(with_step(origin.path, step))

        outcome: dict[tuple[str, int, int], list[str] | Failed] = {}
        for dead_letter in self.run_on(self.graph, Notes, records):
            if dead_letter.topic is not None and dead_letter.partition is not None and dead_letter.offset is not None:
                place = (dead_letter.topic, dead_letter.partition, dead_letter.offset)
                outcome[place] = Failed(_reason(dead_letter, coordinates(*place)), tuple(seen.get(place, ())))
        return {**seen, **outcome}


def make_replay(
    target: str,  # ``topologies/x.py``, or module:Class
    directory: Path,  # the sink's
    run_on: RunOn,  # runs the topology on records
    *,
    topology: str | None = None,  # the class, if the file defines several
    overrides: Sequence[str] = (),  # ``--set`` options
    # the run that wrote there: if it was of this topology, its settings replace this process's environment and
    # ``downspout.toml``
    run: Run | None = None,
) -> TopologyReplay:
    """Return a replay of a topology for the sink of a directory.

    Raises:
        TopologyError: it cannot be loaded, or none of its sinks writes to that directory.
        SinkError: the directory's log is damaged, or the inputs of its rows are unknown.
    """
    graph = load(target, topology)
    settings = _settings(graph, overrides, run)
    ours = _sinks_of(graph, settings, target, directory)
    dead_letters = dict.fromkeys(topic for topic in dead_letter_topics(graph, settings).values() if topic)
    steps = {key: step for name in ours for key, step in _steps(graph, settings, name, directory).items()}
    upstream = graph.upstream(ours)
    spouts = [spout.name for spout in graph.spouts if spout.name in upstream and reads(spout, "kafka")]
    given = [settings.components[name].values for name in spouts]
    topics = dict.fromkeys(topic for values in given for topic in values["kafka.topics"] or ())
    patterns = tuple(values["kafka.pattern"] for values in given if values["kafka.pattern"])
    run_graph = _as_it_was_run(graph, settings)
    # Only components upstream of the sink: the others would repeat their side effects.
    run_graph = replace(run_graph, components={k: v for k, v in run_graph.components.items() if k in upstream})
    read_back = getattr(graph.components[ours[0]].cls, "read_back", RowSink.read_back)
    return TopologyReplay(run_graph, steps, tuple(dead_letters), tuple(topics), patterns, run_on, read_back)


def _settings(graph: Graph, overrides: Sequence[str], run: Run | None) -> Settings:
    """Return the settings of a run: those recorded, those of the topology's file, and ``--set``."""
    if run is None or run.topology != graph.name:
        return settings_of(graph, overrides)
    components = {
        name: replace(component, config={**component.config, **run.settings.get(name, {})})
        for name, component in graph.components.items()
    }
    return settings_of(replace(graph, components=components), overrides, environ={}, file=Path(os.devnull, "none"))


def _sinks_of(graph: Graph, settings: Settings, target: str, directory: Path) -> list[str]:
    """Return the sinks that write to a directory by their settings, or else the one in the directory's log."""
    sinks = {
        c.name: str(settings.components[c.name].values["parquet.directory"]) for c in graph.bolts if reads(c, "parquet")
    }
    if ours := [name for name, place in sinks.items() if folder(place).absolute() == directory.absolute()]:
        return ours
    # The directory may have been moved, copied, or set with ``--set``.
    log = _log(directory, settings, sinks)
    if log.topology == graph.name and log.component in sinks:
        return [log.component]
    written = ", ".join(f"{name} to {place}" for name, place in sinks.items()) or "it has no sink"
    raise TopologyError(
        f"{target}: no sink writes to {directory} ({written})", cure="--set SINK:parquet.directory=DIR, as it was run"
    )


def _log(directory: Path, settings: Settings, sinks: Iterable[str]) -> CommitLog:
    """Return the log of a directory, refreshed; for an object store, with the options of one of the sinks."""
    given = (settings.components[sink].values["parquet.storage_options"] for sink in sinks)
    log = CommitLog(directory, storage_of(directory, next(filter(None, given), None)))
    log.refresh()
    return log


def _steps(graph: Graph, settings: Settings, sink: str, directory: Path) -> Steps:
    """Return the tags of a sink's inputs, as the sink resolves them when it opens the directory."""
    inputs = {
        name_of(given.source, given.stream): (sink, given.source, given.stream)
        for given in graph.components[sink].inputs
        if "origin" in graph.components[given.source].streams[given.stream].fields
    }
    log = _log(directory, settings, [sink])
    names = check_names(settings.components[sink].values["parquet.input_names"], list(inputs))
    steps = resolve(directory, list(inputs), names, log.inputs, has_rows=len(log.coverage) > 0)
    return {inputs[name]: step for name, step in steps.items()}


def _as_it_was_run(graph: Graph, settings: Settings) -> Graph:
    """Return the graph with all its components' settings, except defaults, from all layers."""
    components = {}
    for name, component in graph.components.items():
        found = settings.components[name]
        given = {key: value for key, value in found.values.items() if found.sources[key] != "default"}
        components[name] = replace(component, config={k: v for k, v in given.items() if not k.startswith("run.")})
    return replace(graph, components=components, config={})


def _reason(dead_letter: DeadLetter, place: str) -> str:
    """Return why a record failed, without its coordinates, so equal reasons have equal texts."""
    text = " ".join((dead_letter.error or dead_letter.kind or "").split()).removeprefix(f"{place}: ")
    where = f"fails in {dead_letter.component}" if dead_letter.component else "fails"
    kind = (dead_letter.error_class or "").rpartition(".")[2]
    text = text.removeprefix(f"{dead_letter.component}: ")
    return f"{where}: {kind}: {text}" if kind else f"{where}: {text}"


# --- in a process of its own ---

KILLERS_MAX = 10  # Each costs up to a dozen process starts; an audit with more is aborted

Outcomes = dict[tuple[str, int, int], Iterable[str] | Failed]


class _DiedError(Exception):
    """The process has ended; the message says how."""


class ReplayApart:
    """A :data:`~downspout.audit.expected.Replay` in a child process; close it after use.

    Attributes:
        several: whether a record may have a row through each of several inputs.
        dead_letters: the dead-letter topics of the topology's Kafka spouts.
        topics: the topics that spouts upstream of the sink read.
        patterns: their ``kafka.pattern`` settings.
        read_back: reads the directory's rows, if the sink is not one of ours.

    Raises:
        TopologyError, SinkError: as :func:`~downspout.audit.replays.make_replay` does.
    """

    def __init__(
        self,
        target: str,
        directory: Path,
        run_on: RunOn,
        *,
        topology: str | None = None,
        overrides: Sequence[str] = (),
        run: Run | None = None,
    ) -> None:
        self._target = target
        self.make = partial(
            make_replay, target, directory, run_on, topology=topology, overrides=tuple(overrides), run=run
        )
        here = self.make()  # errors are raised before a process is started
        self.several, self.dead_letters = here.several, here.dead_letters
        self.topics, self.patterns = here.topics, here.patterns
        self.read_back = here.read_back
        self._child: tuple[BaseProcess, Connection] | None = None
        self._killers: list[str] = []

    def __call__(self, records: Sequence[Record]) -> Mapping[tuple[str, int, int], Iterable[str] | Failed]:
        """Run the topology on the records.

        Raises:
            TopologyError: more than :data:`KILLERS_MAX` records have ended the process that ran them.
            DownspoutError: the run failed.
        """
        found: Outcomes = {}
        every = list(records)
        for row, error in failing(lambda start, end: found.update(self._run(every[start:end])), len(every), _DiedError):
            found.update(self._of_killer(every[row], str(error)))
        return found

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            process, pipe = self._child
            pipe.close()  # ends an idle process
            process.terminate()
            process.join()
            self._child = None

    def _run(self, records: Sequence[Record]) -> Outcomes:
        """Run the topology on records. Raises _DiedError: one of them, or more, ended the process."""
        process, pipe = self._child = self._child or self._start()
        try:
            pipe.send(records)
            answer: Outcomes | Exception = pipe.recv()
        except (EOFError, OSError):
            raise _DiedError(self._bury(process)) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _of_killer(self, killer: Record, death: str) -> Outcomes:
        """Return the outcome of a record that kills the process."""
        self._killers.append(f"{coordinates(killer.topic, killer.partition, killer.offset)} ({death})")
        if len(self._killers) > KILLERS_MAX:
            raise TopologyError(
                f"{self._target}: {counted(len(self._killers), 'record')} kill the process that runs them: "
                f"{', '.join(self._killers[:3])}, …",
                cure="fix the bolt first; or --from and --to, for a part with fewer such records",
            )
        return {(killer.topic, killer.partition, killer.offset): Failed(f"kills the process that runs it ({death})")}

    def _start(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")  # a forked process would inherit locks held by other threads
        ours, theirs = context.Pipe()
        process = context.Process(target=_answer, args=(theirs, self.make), name="audit-replay", daemon=True)
        # Ctrl-C must not interrupt the child's start with a traceback of its own. The resource tracker, which
        # multiprocessing would start now, lifts the mask, so it is started first.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        try:
            first: Outcomes | Exception = ours.recv()
        except EOFError:
            death = self._bury(process)
            raise TopologyError(
                f"{self._target}: a process that starts it dies at once, even without records ({death})",
                cure="`downspout check`, and look at what its bolts do in initialize",
            ) from None
        if isinstance(first, Exception):
            ours.close()  # which ends the process
            process.join()
            raise first
        return process, ours

    def _bury(self, process: BaseProcess) -> str:
        """Reap a dead process; return how it died."""
        process.join()
        self._child = None
        code = process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _answer(pipe: Connection, make: Callable[[], TopologyReplay]) -> None:
    """Run the topology without records, then on those from the pipe, until the other end closes."""
    end_with_parent()  # even while a bolt hangs
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches both processes; the parent reports it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.dup2(2, 1)  # bolts' prints must not mix with the report, which may be JSON
    replay = make()
    records: Sequence[Record] = []  # a failure at the start is no record's fault
    while True:
        try:
            answer: Outcomes | DownspoutError = dict(replay(records))
        except DownspoutError as error:
            answer = error
        sys.stdout.flush()  # the process may be killed later
        try:
            pipe.send(answer)
            records = pipe.recv()
        except (EOFError, ConnectionError):  # the audit is done
            return
