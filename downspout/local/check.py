"""What is wrong with a topology, found without running it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pystorm.bolt

from downspout import config
from downspout.errors import ConfigError, DownspoutError, TopologyError
from downspout.kafka import sense
from downspout.kafka.handshake import check_client
from downspout.kafka.spout_setup import UI_KEYS
from downspout.local import sharing
from downspout.local.graph import Component, Graph, nearest
from downspout.local.settings import Settings, reads, resolve
from downspout.parquet.inputs import check_names, name_of
from downspout.parquet.sink_bolt import too_old

__all__ = ["Finding", "findings", "require_fields", "resolve", "values_table"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (``is_error``) or that one should know."""

    is_error: bool
    where: str
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{'error' if self.is_error else 'warning'}: {self.where}: {self.what}. Try: {self.cure}"


def findings(graph: Graph, settings: Settings) -> list[Finding]:
    """Return all that can be said of a graph and its values, errors first."""
    found = [Finding(True, graph.name, problem, "correct the wiring") for problem in graph.problems()]
    found += _lacking(graph)
    found += _unreachable(graph)
    for component in graph.components.values():
        conf = dict(settings.components[component.name].values)
        found += _scopes(component, conf)
        if reads(component, "kafka") and component.is_spout:
            found += _kafka(component, conf)
            found += _stalls(graph, settings, component, conf)
        found += _never_flushes(component, conf)
        if reads(component, "parquet"):
            found += _sink(graph, component, conf)
    found += _letters(graph, settings)
    found += _meetings(graph)
    found += _shared_directories(graph, settings)
    found += _several_processes(graph, settings)
    return sorted(found, key=lambda finding: not finding.is_error)


def _lacking(graph: Graph) -> Iterator[Finding]:
    """Find the input streams that lack a field which their reader cannot do without (its ``requires``)."""
    for component in graph.components.values():
        for given in component.inputs:
            source = graph.components.get(given.source)
            stream = source.streams.get(given.stream) if source else None
            wanted = tuple(getattr(component.cls, "requires", ()))
            if stream and (lacks := [name for name in wanted if name not in stream.fields]):
                yield Finding(
                    True,
                    component.name,
                    f"stream {given.stream!r} of {given.source!r} lacks {', '.join(map(repr, lacks))}, which "
                    f"{component.cls.__name__} needs",
                    f"fields={json.dumps(wanted)} of {given.source!r}",
                )


def require_fields(graph: Graph) -> None:
    """Raise a TopologyError where a component's input lacks a field that it needs."""
    for finding in _lacking(graph):
        raise TopologyError(f"{finding.where}: {finding.what}", cure=finding.cure)


def _scopes(component: Component, conf: dict[str, Any]) -> Iterator[Finding]:
    for scope in getattr(component.cls, "settings_scopes", ()):
        try:
            config.parse_scope(conf, scope)
        except ConfigError as error:
            yield Finding(True, component.name, error.message, error.cure or "`downspout settings`")
    if (columns_of := getattr(component.cls, "columns_of", None)) is not None:  # a sink checks its columns itself
        try:
            columns_of(conf)
        except DownspoutError as error:
            yield Finding(True, component.name, error.message, error.cure or "`downspout settings parquet`")
    for key in component.config:
        if key in config.SETTINGS and not reads(component, config.SETTINGS[key].scope) and not key.startswith("run."):
            cls = component.cls.__name__
            yield Finding(False, component.name, f"{key} is set, but {cls} does not read it", "remove it")


def _kafka(component: Component, conf: dict[str, Any]) -> Iterator[Finding]:
    try:
        settings = config.parse_scope(conf, "kafka")
    except ConfigError:
        return  # said above
    try:
        sense.check(settings, conf.get("run.until") == "end", conf.get("run.member"))
        sense.check_dead_letter_topic(settings, settings["group"] or str(conf.get("topology.name") or ""))
    except ConfigError as error:
        yield Finding(True, component.name, error.message, error.cure or "`downspout settings kafka`")
        return
    for what, cure in sense.doubts(settings):
        yield Finding(False, component.name, what, cure)
    try:
        check_client(config.parse_scope(config.with_secrets(conf), "kafka")["client"])
    except ConfigError as error:  # it may be there where the topology will run
        yield Finding(False, component.name, error.message, error.cure or "set it where the topology runs")
    for key, value in conf.items():
        if config.is_secret(key, value):
            yield Finding(
                False,
                component.name,
                f"{key} stands in plain text: Storm keeps and shows the settings of a topology",
                f"{key}=env:NAME, or file:PATH: looked up where the component runs",
            )


def _letters(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find bolts that write dead letters where no spout of the topology does: some settings are a spout's own."""

    def topic_of(component: Component) -> str:
        conf = settings.components[component.name].values
        values = {"dead_letter_topic": conf["kafka.dead_letter_topic"]}
        return sense.dead_letter_topic(values, conf["kafka.group"] or str(conf.get("topology.name") or graph.name))

    topics = {topic_of(spout) for spout in graph.spouts if reads(spout, "kafka")}
    for bolt in graph.bolts:
        if topics and reads(bolt, "kafka") and topic_of(bolt) not in topics:
            yield Finding(
                False,
                bolt.name,
                f"it writes dead letters to {topic_of(bolt) or 'no topic'}, and the spouts to "
                f"{', '.join(sorted(topic or 'no topic' for topic in topics))}",
                "kafka.group and kafka.dead_letter_topic of the topology, not of one component",
            )


def _never_flushes(component: Component, conf: dict[str, Any]) -> Iterator[Finding]:
    """pystorm's BatchingBolt processes its batches on ticks alone."""
    if not issubclass(component.cls, pystorm.bolt.BatchingBolt):
        return
    if issubclass(component.cls, pystorm.bolt.TicklessBatchingBolt) or conf.get("topology.tick.tuple.freq.secs"):
        return
    yield Finding(
        False,
        component.name,
        f"{component.cls.__name__} is a BatchingBolt and gets no ticks, so it never processes a batch",
        'config={"topology.tick.tuple.freq.secs": 1}',
    )


def _stalls(graph: Graph, settings: Settings, spout: Component, conf: dict[str, Any]) -> Iterator[Finding]:
    """A sink acks when it flushes; a spout that may not emit enough for a flush waits for its age every time."""
    pending = int(conf.get("topology.max.spout.pending") or 0)
    for sink in graph.components.values():
        if not pending or not reads(sink, "parquet"):
            continue
        values = settings.components[sink.name].values
        rows, age_s = int(values["parquet.flush_rows"]), float(values["parquet.flush_age_s"])
        if pending * spout.par < rows:
            yield Finding(
                False,
                spout.name,
                f"topology.max.spout.pending = {pending:,} per task is below parquet.flush_rows = {rows:,} of "
                f"{sink.name}: each flush waits for its age, so at most {pending * spout.par:,} records pass in "
                f"{age_s:g} s",
                f"topology.max.spout.pending of at least {rows:,}, or fewer flush_rows",
            )


def _sink(graph: Graph, component: Component, conf: dict[str, Any]) -> Iterator[Finding]:
    if doubt := too_old(conf, float(conf["parquet.flush_age_s"])):
        yield Finding(True, component.name, *doubt)
    if (given := conf["parquet.directory"]) and (why := in_the_way(Path(given).absolute())):
        what = f"parquet.directory = {given} cannot be made: {why}"
        yield Finding(True, component.name, what, "another directory")
    if conf.get("topology.acker.executors") == 0:
        yield Finding(
            False, component.name, "without ackers a crash loses what the sink holds", "topology.acker.executors = 1"
        )
    try:
        check_names(conf["parquet.input_names"] or (), [name_of(*given) for given in _with_origin(graph, component)])
    except ConfigError as error:
        yield Finding(True, component.name, error.message, error.cure or "`downspout settings parquet`")
    columns = [str(column).partition(":")[0].strip() for column in conf["parquet.schema"] or ()]
    for given in component.inputs:
        source = graph.components.get(given.source)
        stream = source.streams.get(given.stream) if source else None
        if stream is None:
            continue
        if "origin" not in stream.fields:
            yield Finding(
                False,
                component.name,
                f"stream {given.stream!r} of {given.source!r} has no field `origin`: rows are written at least once, "
                "not exactly once",
                "hand the spout's field `origin` on",
            )
        for column in columns:
            if column not in stream.fields:
                yield Finding(
                    True,
                    component.name,
                    f"column {column!r} of parquet.schema is no field of stream {given.stream!r} of {given.source!r}",
                    nearest(column, stream.fields),
                )


def _with_origin(graph: Graph, component: Component) -> list[tuple[str, str]]:
    """Return the inputs that carry origins, as component and stream."""
    return [
        (given.source, given.stream)
        for given in component.inputs
        if (source := graph.components.get(given.source)) is not None
        and (stream := source.streams.get(given.stream)) is not None
        and "origin" in stream.fields
    ]


def _meetings(graph: Graph) -> Iterator[Finding]:
    """Find bolts where tuples of one record meet again before a sink.

    A sink tells its own inputs apart. A bolt before it emits tuples that do not say through which of its own inputs
    they came; where it hands origins on, two rows have one identity.
    """
    spouts: dict[str, set[str]] = {spout.name: {spout.name} for spout in graph.spouts}
    for bolt in graph.bolts:  # sources come first
        spouts[bolt.name] = set().union(*(spouts.get(given.source, set()) for given in bolt.inputs))
    before: set[str] = set()
    for bolt in reversed(graph.bolts):
        if bolt.name in before or reads(bolt, "parquet"):
            before |= {given.source for given in bolt.inputs}
    for bolt in graph.bolts:
        if bolt.name not in before or reads(bolt, "parquet"):
            continue
        inputs = _with_origin(graph, bolt)
        if common := [s for s in spouts[bolt.name] if sum(s in spouts[source] for source, _ in inputs) > 1]:
            yield Finding(
                False,
                bolt.name,
                f"tuples of one record of {min(common)!r} reach it through several inputs: where it hands their "
                "`origin` on, the rows that a sink gets of them count as one row",
                "in this bolt origin.child(tup.component, 0) for origin; nothing if it makes one row of them all",
            )


def in_the_way(place: Path) -> str | None:
    """Return why a directory cannot be made, as far as its names and what is there tell.

    >>> in_the_way(Path("/dev/null/out")), in_the_way(Path("/no/such/place/yet"))
    ('/dev/null is a file', None)
    """
    for part in (*reversed(place.parents), place):
        try:
            if part.exists() and not part.is_dir():
                return f"{part} is a file"
        except OSError as error:  # a name that is too long, for example
            return error.strerror
    return None


def _shared_directories(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Rows of two sinks may have the same identities: in one directory the second would be taken for replays."""
    seen: list[tuple[str, Path]] = []
    for sink in graph.components.values():
        given = settings.components[sink.name].values.get("parquet.directory") if reads(sink, "parquet") else None
        if not given:
            continue
        place = Path(given).resolve()
        for name, other in seen:
            if place.is_relative_to(other) or other.is_relative_to(place):
                how = "the same as" if place == other else "within or above"
                yield Finding(
                    True,
                    sink.name,
                    f"parquet.directory = {given} is {how} that of {name}",
                    "a directory for each sink",
                )
        seen.append((sink.name, place))


def _several_processes(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find what does not survive being cut into several processes (``run.workers``, ``run.member``)."""
    if sharing.processes_of(settings) == 1:
        return
    if (problem := sharing.spout_problem(graph, settings)) is not None:
        yield Finding(True, graph.name, problem.message, problem.cure or "one process")
    for bolt, what, cure in sharing.split_groupings(graph):
        yield Finding(False, bolt.name, what, cure)


def _unreachable(graph: Graph) -> Iterator[Finding]:
    reached = {spout.name for spout in graph.spouts}
    while True:
        more = {
            bolt.name
            for bolt in graph.bolts
            if bolt.name not in reached and any(given.source in reached for given in bolt.inputs)
        }
        if not more:
            break
        reached |= more
    for bolt in graph.bolts:
        if bolt.name not in reached:
            yield Finding(True, bolt.name, "no spout's tuples reach it", "an input that leads back to a spout")
    for spout in graph.spouts:
        for stream in spout.streams:
            if not any(graph.subscribers(spout.name, stream)):
                yield Finding(False, spout.name, f"nobody reads its stream {stream!r}", "a bolt that does")


def values_table(graph: Graph, settings: Settings, *, everything: bool = False) -> str:
    """Return each component's values and where they came from; secrets are not shown."""
    lines = [f"topology {graph.name}"]
    lines += _values(settings.run, ("run",), everything)
    for component in graph.components.values():
        scopes = tuple(getattr(component.cls, "settings_scopes", ()))
        kind = "spout" if component.is_spout else "bolt"
        lines.append(
            f"{kind} {component.name} ({component.cls.__module__}.{component.cls.__name__}, par {component.par})"
        )
        for given in component.inputs:
            fields = f"({', '.join(given.fields)})" if given.fields else ""
            lines.append(f"  reads {given.source}:{given.stream} by {given.grouping}{fields}")
        lines += _values(settings.components[component.name], scopes, everything)
    return "\n".join(lines)


def _values(resolved: config.Resolved, scopes: tuple[str, ...], everything: bool) -> Iterator[str]:
    for key, value in sorted(resolved.values.items()):
        if key in UI_KEYS:
            continue
        known = key in config.SETTINGS
        source = resolved.sources[key]
        if source == "default" and not (everything and known and config.SETTINGS[key].scope in scopes):
            continue
        if known and config.SETTINGS[key].scope not in scopes and source != "component":
            continue
        yield f"  {key} = {config.shown(key, value)}  ({source})"
