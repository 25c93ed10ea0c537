"""Run a topology in simulated worlds: one seed, or many."""

from __future__ import annotations

import importlib
import multiprocessing
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from downspout.engine.graph import Component, Graph, from_class, nearest
from downspout.engine.load import load_module, name_of
from downspout.engine.settings import reads, resolve
from downspout.errors import ConfigError, TopologyError
from downspout.formatting import counted
from downspout.settings.table import parse_scope
from downspout.sink.schema import Columns
from downspout.spout.settings import dead_letter_topic
from downspout.spout.tuples import CHUNKS
from downspout.system.process import end_with_parent
from downspout.testing.simulation.faults import FaultPlan, draw, of_batches
from downspout.testing.simulation.sources import WITHOUT, Maker, ProducedRecord, States, is_of_batches, states_of
from downspout.testing.simulation.verdict import Rows, SinkRows, dead_lettered, expected_rows, judge, read_rows
from downspout.testing.simulation.world import World
from downspout.testing.virtual_clock import TimelineEvent, Trace, determined

__all__ = ["Outcome", "Scenario", "SimulationError", "SoakTotals", "load_scenarios", "simulate", "soak"]

EVENTS_SHOWN = 40
Check = Callable[[Sequence[ProducedRecord], Any], Iterable[str]]


@dataclass(frozen=True)
class Scenario:
    """A topology, its input, and its expected output.

    Args:
        topology: streamparse's Topology class (or a graph): KafkaSpouts that read ``topics``, and sinks.
        records: makes a record from a random generator and the record's number: its value, or a
            :class:`~downspout.testing.simulation.Message`.
        rows: returns the expected rows of a record as dicts by column, or None if it cannot be processed and must have
            a dead letter. Values are compared as the sink's columns hold them. Called after the run with the sent
            record (``value``, ``key``, ``topic``, …). With several sinks, a dict of functions by sink.
        check: instead of ``rows``, for sinks whose rows have no origin, such as AggregateBolt's: returns problems,
            given the sent records and the sink's directory; with several sinks, a dict. For a KafkaBolt, it is given
            the sent records and those of its topic, as a read_committed consumer sees them. No record is compacted or
            deleted then, and none kills a process.
        states: instead of both, for a topology of batches: returns the expected final values of a StateBolt by key,
            given the sent records; with several states, a dict. Stores are in memory, and one process runs at a time,
            except for a replaced one that wakes.
        config: fixed settings and Storm's keys. The seed draws others that only affect timing; in a third of the worlds
            tuples are chunks (``kafka.emit``), if the spouts can emit them.
        without: kinds of faults to exclude (``downspout.testing.simulation.KINDS``).
    """

    topology: Any
    records: Maker
    rows: Rows | Mapping[str, Rows] | None = None
    check: Check | Mapping[str, Check] | None = None
    states: States | Mapping[str, States] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    @property
    def graph(self) -> Graph:
        """Return the topology as a graph."""
        return self.topology if isinstance(self.topology, Graph) else from_class(self.topology, name_of(self.topology))


@dataclass
class Outcome:
    """The result of one seed."""

    seed: int
    violations: list[str]  # one sentence each
    hash: str  # of the trace; the same seed gives the same one
    simulated_s: float  # virtual seconds of the run
    records: int  # written
    emitted: int  # by the spouts, with repetitions
    chunks: int  # chunks emitted by the spouts
    rebalances: int  # of the consumer group
    injected: Counter[str]  # faults that struck, by kind
    report: str  # the violations, the last related events, and how to repeat the seed
    trace: Trace


class SimulationError(AssertionError):
    """A seed violated a property; the message is the outcome's report."""


def simulate(
    scenario: Scenario, seeds: Iterable[int] = range(20), *, again: str = "simulate(scenario, seeds=[{seed}])"
) -> list[Outcome]:
    """Run a scenario in the world of each seed; for tests.

    ``again`` is how the failure report tells to repeat a seed.

    Raises:
        SimulationError: a property does not hold in one of them; the rest is not run.
        DownspoutError: the scenario is invalid.
    """
    outcomes = []
    for seed in seeds:
        outcome = run_seed(scenario, seed, again=again)
        if outcome.violations:
            raise SimulationError(outcome.report)
        outcomes.append(outcome)
    return outcomes


def run_seed(scenario: Scenario, seed: int, *, again: str = "", plan: FaultPlan | None = None) -> Outcome:
    """Run one seed."""
    graph = scenario.graph
    plan = plan or plan_of(scenario, seed)
    confs, sinks = _confs(graph, plan, scenario)
    spouts = graph.spouts if is_of_batches(graph) else _kafka_spouts(graph)
    topics = sorted({topic for spout in spouts for topic in _kafka(confs[spout.name])["topics"] or ()})
    if not topics:
        raise ConfigError(f"{graph.name}: no spout has kafka.topics", cure="a KafkaSpout with topics=[…]")
    top = Path(tempfile.mkdtemp(prefix="downspout-simulation-", dir=_fast_folder()))
    try:
        with determined(seed):
            for name, sink in sinks.items():
                if "parquet.directory" in confs[name]:
                    confs[name]["parquet.directory"] = f"s3://bucket/{name}" if plan.store else str(top / name)
                sink.directory = top / name
            values = _kafka(confs[spouts[0].name])
            group = values["group"] or graph.name
            world = World(plan, graph, confs, topics=topics, group=group, make=scenario.records, top=top)
            with world.kafka:
                world.run()
                if world.batches is not None:
                    world.violations += world.batches.wrong(_states(graph, scenario), world.sources.sent)
                    concerned = []
                else:
                    concerned = _verdict(world, sinks, dead_letter_topic(values, group))
            return _outcome(world, concerned, again)
    finally:
        shutil.rmtree(top, ignore_errors=True)


def plan_of(scenario: Scenario, seed: int) -> FaultPlan:
    """Return the plan of a seed for a scenario."""
    lossy = ("compaction", "retention", "killer") if scenario.check is not None else ()
    if is_of_batches(scenario.graph):
        without = (*scenario.without, *WITHOUT)
        plan = of_batches(draw(seed, without), without)
        plan.config.update(scenario.config)
        return plan
    plan = draw(seed, (*scenario.without, *lossy))
    plan.config.update(scenario.config)
    if plan.config.get("kafka.emit") == "chunk" and "kafka.emit" not in scenario.config:
        graph = scenario.graph
        confs = _resolved(graph, plan.config)
        if not all(_may_emit_chunks(graph, spout, confs[spout.name]) for spout in _kafka_spouts(graph)):
            plan.config["kafka.emit"] = "record"
    return plan


def _may_emit_chunks(graph: Graph, spout: Component, conf: Mapping[str, Any]) -> bool:
    """Return whether a spout can emit chunks, and the topology leaves the choice open."""
    if "kafka.emit" in graph.config or "kafka.emit" in spout.config:
        return False
    try:
        CHUNKS.check(_kafka(conf))
    except ConfigError:
        return False
    return True


@dataclass
class _Sink:
    """A sink, and either ``rows`` or ``check`` for its files."""

    conf: Mapping[str, Any]
    rows: Rows | None
    check: Check | None
    directory: Path = Path()

    def wrong(self, world: World, sent: Sequence[ProducedRecord]) -> Iterable[str]:
        """Return the problems that ``check`` finds."""
        if self.check is None:
            return []
        topic = self.conf.get("produce.topic")
        written: Any = self.directory
        if topic is not None:
            written = world.kafka.records(topic) if world.kafka.topic(topic) is not None else []
        return self.check(sent, written)

    def compared(self, world: World) -> SinkRows:
        """Return the found and the expected rows."""
        assert self.rows is not None  # otherwise it has a check
        settings = parse_scope(self.conf, "parquet")
        columns = Columns.parse(settings["schema"] or ())
        wanted = expected_rows(world.sources.sent, _unless_it_kills(world, self.rows), columns)
        try:
            return SinkRows(read_rows(self.directory, columns, settings["partition_by"]), wanted)
        except KeyError as error:
            raise TopologyError(
                f"{world.graph.name}: the rows of {self.directory.name} have no column {error}",
                cure="the field origin in every tuple, or check=",
            ) from None


def _verdict(world: World, sinks: Mapping[str, _Sink], dead_letters: str) -> list[str]:
    """Add problems to the world's violations; return the places of the records concerned."""
    if world.violations:
        return [violation.split(":")[1].split("@")[0].strip() for violation in world.violations if ": " in violation]
    sent = world.sources.sent
    for sink in sinks.values():
        world.violations += sink.wrong(world, [one for one in sent if one.state == "committed"])
    compared = {name: sink.compared(world) for name, sink in sinks.items() if sink.rows is not None}
    if not compared:
        return []
    found = list(judge(sent, compared, dead_lettered(world.kafka, dead_letters), world.may_have_dead_letters))
    world.violations += [f"{place} {what}" for place, what in found]
    return [place for place, _ in found]


def _unless_it_kills(world: World, rows: Rows) -> Rows:
    """Wrap ``rows``: a record that kills processes must only become a dead letter."""
    killers = world.faults.killers
    return lambda record: None if record.place in killers else rows(record)


def _outcome(world: World, concerned: list[str], again: str) -> Outcome:
    seed, trace = world.plan.seed, world.trace
    for violation in world.violations:
        trace.note("world", violation)
    group = world.kafka.group(world.group)
    return Outcome(
        seed,
        world.violations,
        trace.hash(),
        world.clock.monotonic(),
        len(world.sources.sent),
        world.emitted,
        world.chunks,
        group.generation,
        world.injected,
        _report(seed, world, concerned, again) if world.violations else "",
        trace,
    )


def _report(seed: int, world: World, concerned: list[str], again: str) -> str:
    lines = [
        f"seed {seed}: {counted(len(world.violations), 'violation')}",
        *(f"  {one}" for one in world.violations[:10]),
    ]
    lines += [f"again: {again.format(seed=seed)}", f"trace: {world.trace.hash()}"]
    for place in dict.fromkeys(concerned[:2]):
        lines += [f"the last events about {place}:", *map(str, _about(world.trace, place))]
    lines += ["the last events:", *map(str, world.trace.events[-EVENTS_SHOWN:])]
    return "\n".join(lines)


def _about(trace: Trace, place: str) -> list[TimelineEvent]:
    """Return the last events that name a record, with the starts and ends of processes since the first of them."""
    named = [event for event in trace.events if any(covers(word, place) for word in re.split(r"[ :]", event.what))]
    since = named[-EVENTS_SHOWN:][0].at if named else 0.0
    ends = ("is killed", "dies", "starts", "ends", "stands", "wakes", "has left", "link")
    fates = [event for event in trace.events if event.at >= since and event.what.startswith(ends)]
    kept = {id(event) for event in named[-EVENTS_SHOWN:] + fates[:EVENTS_SHOWN]}
    return [event for event in trace.events if id(event) in kept]


def covers(word: str, place: str) -> bool:
    """Return whether a word of the trace names a record, or a range that contains it.

    >>> [covers(word, "orders[0]@7") for word in ("orders[0]@7", "orders[0]@3-8", "orders[0]@3-7", "orders[1]@3-8")]
    [True, True, False, False]
    >>> covers("re-reads", "orders[0]@7"), covers("orders[0]@-1", "orders[0]@7"), covers("3-8", "orders[0]")
    (False, False, False)
    """
    if word == place or "-" not in word:
        return word == place
    (where, _, offset), (partition, _, span) = place.rpartition("@"), word.rpartition("@")
    start, _, end = span.partition("-")
    known = where == partition and all(map(str.isdecimal, (offset, start, end)))
    return known and int(start) <= int(offset) < int(end)


# --- settings ---------------------------------------------------------------------------------------------


def _confs(graph: Graph, plan: FaultPlan, scenario: Scenario) -> tuple[dict[str, dict[str, Any]], dict[str, _Sink]]:
    """Return the configuration of each component, and the sinks.

    Raises:
        TopologyError: no sink or no KafkaSpout, or the scenario lacks a sink's expected content.
    """
    confs = _resolved(graph, {**plan.config, **scenario.config})
    for conf in confs.values():
        conf["topology.name"] = graph.name
        conf["storm.id"] = f"{graph.name}-1-1700000000"
    if is_of_batches(graph):
        _states(graph, scenario)
        return confs, {}
    names = [bolt.name for bolt in graph.bolts if reads(bolt, "parquet")]
    writers = [bolt.name for bolt in graph.bolts if confs[bolt.name].get("produce.topic") and reads(bolt, "produce")]
    if not (names or writers) or not _kafka_spouts(graph):
        raise TopologyError(
            f"{graph.name} has {counted(len(names), 'Parquet sink')}, {counted(len(writers), 'KafkaBolt')} with a "
            f"fixed topic and {counted(len(_kafka_spouts(graph)), 'KafkaSpout')}",
            cure="simulate a topology with a KafkaSpout and at least one of the others",
        )
    rows = _by_sink(graph, names, "rows", scenario.rows)
    checked = names + writers if isinstance(scenario.check, Mapping) or not names else names
    checks = _by_sink(graph, checked, "check", scenario.check)
    for name in names or writers:
        if (name in rows) == (name in checks):
            raise TopologyError(
                f"{graph.name}: the scenario says {'twice' if name in rows else 'nothing about'} what {name} must hold",
                cure=f'rows={{"{name}": …}}, or check={{"{name}": …}} where its rows have no origin',
            )
    return confs, {name: _Sink(confs[name], rows.get(name), checks.get(name)) for name in names + writers}


def _states(graph: Graph, scenario: Scenario) -> dict[str, States]:
    """Return the scenario's functions by state.

    Raises:
        TopologyError: one for a state is missing, or there are some for sinks, which are not checked here.
    """
    names = [bolt.name for bolt in states_of(graph)]
    made = _by_sink(graph, names, "states", scenario.states)
    if scenario.rows is not None or scenario.check is not None or set(made) != set(names) or not names:
        raise TopologyError(
            f"{graph.name} counts in batches, and the scenario does not say what each of its states "
            f"({', '.join(names) or 'there is none'}) must hold",
            cure=f'states={{"{(names or ["counts"])[0]}": …}}, and neither rows= nor check=',
        )
    return made


def _by_sink(graph: Graph, names: Sequence[str], what: str, given: Any) -> dict[str, Any]:
    """Return a scenario's functions by sink; a single function belongs to the only sink."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if len(names) > 1:
            raise TopologyError(
                f"{graph.name} has the sinks {', '.join(names)}, and one function {what}=",
                cure=f'{what}={{"{names[0]}": …}}: a dict by the name of the sink',
            )
        return {names[0]: given}
    if strangers := [name for name in given if name not in names]:
        raise TopologyError(
            f"{graph.name}: {what}= names {', '.join(strangers)}, which it has not",
            cure=f"one of {', '.join(names)}",
        )
    return dict(given)


def _resolved(graph: Graph, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return resolve(graph, given, environ={}, file=Path("/nonexistent")).confs()


def _kafka_spouts(graph: Graph) -> list[Component]:
    return [spout for spout in graph.spouts if reads(spout, "kafka") and not reads(spout, "batch")]


def _kafka(conf: Mapping[str, Any]) -> dict[str, Any]:
    return parse_scope(conf, "kafka")


def _fast_folder() -> str | None:
    """Return a folder in memory, if any, for the sinks' many short-lived files."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def error_outcome(seed: int, error: Exception) -> str:
    """Return the report of a seed that failed to run."""
    return f"seed {seed}: the simulation itself failed: {error}\n{''.join(traceback.format_exception(error))}"


# --- Many seeds, over several processes ---

CHUNK = 25  # Seeds that a worker runs before it reports


@dataclass
class SoakTotals:
    """The totals of many seeds, as in :class:`Outcome`."""

    seeds: int = 0
    simulated_s: float = 0.0
    records: int = 0
    emitted: int = 0
    chunks: int = 0
    rebalances: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    reports: list[str] = field(default_factory=list)  # of seeds that violated a property

    def add(self, other: SoakTotals) -> None:
        """Add other totals."""
        self.seeds += other.seeds
        self.simulated_s += other.simulated_s
        self.records += other.records
        self.emitted += other.emitted
        self.chunks += other.chunks
        self.rebalances += other.rebalances
        self.injected += other.injected
        self.reports += other.reports

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.injected.items()))
        return (
            f"{self.seeds:,} seeds, {self.simulated_s / 3600:,.1f} simulated hours, {self.records:,} records "
            f"({self.emitted:,} emitted; {self.chunks:,} chunks), {self.rebalances:,} rebalances, "
            f"{counted(len(self.reports), 'violation')}\n"
            f"faults: {faults or 'none'}"
        )


def load_scenarios(target: str) -> dict[str, Scenario]:
    """Return the scenarios of a target: all of ``FILE`` or ``module``, or with ``:NAME`` one of them.

    Raises:
        TopologyError: no such file, or no such scenario in it.
    """
    place, _, wanted = target.rpartition(":") if ":" in target else (target, "", "")
    module = load_module(place, "a scenario")
    found = {name: value for name, value in vars(module).items() if isinstance(value, Scenario)}
    if not found:
        raise TopologyError(f"{place} holds no Scenario", cure="orders = Scenario(Orders, records=…, rows=…)")
    if wanted and wanted not in found:
        raise TopologyError(f"{place} has no scenario {wanted!r}", cure=nearest(wanted, found))
    return {wanted: found[wanted]} if wanted else found


def scenario_of(scenarios: Mapping[str, Scenario], seed: int) -> str:
    """Return the name of a seed's scenario: they take turns."""
    return list(scenarios)[seed % len(scenarios)]


def soak(
    target: str,
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    progress: TextIO | None = None,
    tell: Callable[[str], None] = lambda report: None,
    failures_max: int = 5,
) -> SoakTotals:
    """Run seeds, each in one of the target's scenarios in turn.

    Args:
        progress: receives progress lines.
        tell: called with the report of each violation.
        failures_max: stop after this many violations.
    """
    total, started = SoakTotals(), time.monotonic()
    redrawn = progress is not None and progress.isatty()
    parts = [list(seeds[at : at + CHUNK]) for at in range(0, len(seeds), CHUNK)]
    for part in _results(target, parts, jobs):
        total.add(part)
        for report in part.reports:
            tell(report)
        if progress is not None:
            passed = time.monotonic() - started
            line = (
                f"{total.seeds:,} of {len(seeds):,} seeds, {total.simulated_s / 3600:,.1f} simulated hours in "
                f"{passed:,.0f} s, {counted(len(total.reports), 'violation')}"
            )
            print(f"\r{line}" if redrawn else line, end="" if redrawn else "\n", file=progress, flush=True)
        if len(total.reports) >= failures_max:
            break
    if redrawn:
        print(file=progress)
    return total


def _results(target: str, parts: list[list[int]], jobs: int) -> Iterator[SoakTotals]:
    if jobs <= 1:
        yield from (run_part(target, part, list(sys.path)) for part in parts)
        return
    context = multiprocessing.get_context("spawn")  # a forked process would inherit Arrow's threads, half of each
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=end_with_parent) as pool:
        try:
            yield from pool.map(run_part, [target] * len(parts), parts, [list(sys.path)] * len(parts))
        finally:
            pool.shutdown(cancel_futures=True)


def run_part(target: str, seeds: Sequence[int], path: list[str]) -> SoakTotals:
    """Run some seeds in this process."""
    if path != sys.path:
        sys.path[:] = path
        importlib.invalidate_caches()
    scenarios = load_scenarios(target)
    total = SoakTotals()
    for seed in seeds:
        name = scenario_of(scenarios, seed)
        where = target if target.endswith(f":{name}") else f"{target}:{name}"
        again = f"downspout simulate {_short(where)} --seed {{seed}} --trace"
        try:
            outcome = run_seed(scenarios[name], seed, again=again)
        except TopologyError:
            raise  # it is wrong in every world
        except Exception as error:
            total.reports.append(error_outcome(seed, error))
            total.seeds += 1
            continue
        total.add(_of(outcome))
    return total


def _of(outcome: Outcome) -> SoakTotals:
    """Return the totals of one seed."""
    return SoakTotals(
        1,
        outcome.simulated_s,
        outcome.records,
        outcome.emitted,
        outcome.chunks,
        outcome.rebalances,
        outcome.injected,
        [outcome.report] if outcome.violations else [],
    )


def _short(target: str) -> str:
    """Return a target relative to the working directory, if it is inside."""
    path, colon, name = target.rpartition(":")
    here = f"{Path.cwd()}/"
    return f"{path.removeprefix(here)}{colon}{name}"
