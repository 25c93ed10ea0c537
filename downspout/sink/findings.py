"""Findings about sinks: their directories and columns, and whether rows keep their identity on the way there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pystorm.bolt import BatchingBolt
from pystorm.bolt import Bolt as StormBolt

from downspout.engine.graph import Component, Graph, nearest
from downspout.engine.settings import Settings, reads
from downspout.errors import ConfigError, DownspoutError, SinkError
from downspout.findings import Finding
from downspout.settings.object_path import ObjectPath, is_object_url
from downspout.sink.column_types import DIGITS_MAX, EPOCH_UNITS, Kind, kind_of, to_array
from downspout.sink.identity import check_names, name_of
from downspout.sink.layout import probe
from downspout.sink.log import CommitLog
from downspout.sink.notes import hand_over_run
from downspout.sink.object_store import storage_of
from downspout.sink.row_sink import too_old
from downspout.sink.schema import CONVERSION_ERRORS, Columns
from downspout.sink.sink_bolt import SinkBolt, directory_of


def findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find what would keep a sink from starting, from writing rows exactly once, or from flushing in time."""
    confs = settings.confs()
    hand_over_run(graph, settings, confs)
    for component in graph.components.values():
        if component.is_spout and reads(component, "kafka"):
            yield from _stalls(graph, settings, component, confs[component.name])
        if reads(component, "parquet"):
            yield from _sink(graph, component, confs[component.name])
    yield from _early_acks(graph)
    yield from _weak_guarantees(graph, settings)
    yield from _lost_digits(graph, settings)
    yield from _other_types(graph, settings)
    yield from _meetings(graph)
    yield from _shared_directories(graph, settings)


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
    idle_s, age_s = float(conf["parquet.idle_s"]), float(conf["parquet.flush_age_s"])
    if any(key.startswith("window(") for key in conf["parquet.keys"]) and idle_s < 4 * age_s:
        yield Finding(
            False,
            component.name,
            f"parquet.idle_s = {idle_s:g} is less than four times parquet.flush_age_s = {age_s:g}: windows would be "
            "final while a partition waits for its next flush",
            f"parquet.idle_s of at least {4 * age_s:g}",
        )
    given = conf["parquet.directory"]
    if given and is_object_url(given):
        yield from _on_object_store(graph, component, conf)
    elif given and (why := in_the_way(Path(given).absolute())):
        what = f"parquet.directory = {given} cannot be made: {why}"
        yield Finding(True, component.name, what, "another directory")
    elif given and (refusal := _refusal(graph, component, conf)):
        yield Finding(True, component.name, refusal.message, refusal.cure or "another directory")
    if conf.get("topology.acker.executors") == 0:
        yield Finding(
            False,
            component.name,
            "without ackers, a crash loses the rows that the sink holds",
            "topology.acker.executors = 1",
        )
    try:
        check_names(conf["parquet.input_names"] or (), [name_of(*given) for given in _with_origin(graph, component)])
    except ConfigError as error:
        yield Finding(True, component.name, error.message, error.cure or "`downspout settings parquet`")
    yield from without_origin(graph, component)
    if conf.get("parquet.late") == "stream" and not any(graph.subscribers(component.name, "late")):
        yield Finding(
            True,
            component.name,
            "no bolt reads its stream 'late': with parquet.late = stream, late rows would be lost",
            f"a ParquetBolt with inputs=[{component.name}['late']], or parquet.late=add",
        )
    columns = [str(column).partition(":")[0].strip() for column in conf["parquet.schema"] or ()]
    for given in component.inputs:
        source = graph.components.get(given.source)
        stream = source.streams.get(given.stream) if source else None
        if stream is None:
            continue
        for column in columns:
            if column not in stream.fields:
                yield Finding(
                    True,
                    component.name,
                    f"column {column!r} of parquet.schema is not a field of stream {given.stream!r} of "
                    f"{given.source!r}",
                    nearest(column, stream.fields),
                )


def _on_object_store(graph: Graph, component: Component, conf: dict[str, Any]) -> Iterator[Finding]:
    """Find problems of a sink with its object store: write an empty object and remove it."""
    refusal: DownspoutError | None
    directory = directory_of(conf["parquet.directory"], conf)
    try:
        log = CommitLog(directory, storage_of(directory, conf["parquet.storage_options"]))
        probe(log.disk, log.layout, f"check-{uuid.uuid4().hex[:12]}")
        refusal = _refusal(graph, component, conf)
    except DownspoutError as error:
        refusal = error
    except OSError as error:
        refusal = SinkError(
            f"parquet.directory = {directory} cannot be written: {error.strerror} ({error.filename})",
            cure="correct the permissions, the credentials or parquet.storage_options: a sink puts, gets, copies, "
            "lists and removes objects",
        )
    if refusal is not None:
        yield Finding(True, component.name, refusal.message, refusal.cure or "another directory")


def in_the_way(place: Path) -> str | None:
    """Return why a directory cannot be made, judging by its names and its content.

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


def _refusal(graph: Graph, component: Component, conf: dict[str, Any]) -> DownspoutError | None:
    """Return why a sink would not start in its directory, judging by its content."""
    inputs = [name_of(*given) for given in _with_origin(graph, component)]
    try:
        if issubclass(component.cls, SinkBolt):
            component.cls.make_writer({**conf, "topology.name": graph.name}, component.name, inputs).check()
    except (ConfigError, OSError):  # what is wrong with its settings is said elsewhere; others may read it elsewhere
        return None
    except DownspoutError as error:
        return error
    return None


def _writes_rows(component: Component) -> bool:
    """Return whether a component identifies rows by their origins and inputs."""
    return reads(component, "parquet") or reads(component, "sql")


def without_origin(graph: Graph, component: Component) -> Iterator[Finding]:
    """Find inputs of a sink whose rows cannot be distinguished from their replays."""
    for given in component.inputs:
        source = graph.components.get(given.source)
        stream = source.streams.get(given.stream) if source else None
        if stream is not None and "origin" not in stream.fields:
            early = [name for name in sorted(graph.upstream([given.source])) if acks_early(graph.components[name])]
            rows = "rows are written at least once, not exactly once"
            if early:
                rows = f"rows may be missing after a crash or counted twice, since {early[0]} acks before it emits"
            yield Finding(
                False,
                component.name,
                f"stream {given.stream!r} of {given.source!r} has no field `origin`: {rows}",
                _COUNTS if early else "pass on the spout's field `origin`",
            )


_COUNTS = (
    "AggregateBolt or StateBolt; or a BatchingBolt of streamparse's, which holds its tuples until it has emitted "
    "(docs/how-to/count-in-batches.md)"
)


def acks_early(component: Component) -> bool:
    """Return whether a bolt acks a tuple as soon as ``process`` returns, and emits what it made of it at a tick.

    Storm's rule: acked tuples are done. So the rows that such a bolt holds are lost when its process dies, and the
    counts of a tree that failed elsewhere are repeated.
    """
    cls: Any = component.cls
    if component.is_spout or issubclass(cls, BatchingBolt) or not any(s.fields for s in component.streams.values()):
        return False
    return bool(getattr(cls, "auto_ack", True)) and getattr(cls, "process_tick", None) is not StormBolt.process_tick


def _early_acks(graph: Graph) -> Iterator[Finding]:
    """Find bolts that count and lose what they have counted."""
    for bolt in graph.bolts:
        if acks_early(bolt):
            yield Finding(
                False,
                bolt.name,
                "it acks each tuple before it emits its results at ticks: a crash loses what it holds, and a retried "
                "tuple counts twice",
                _COUNTS,
            )


def _weak_guarantees(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find spouts whose guarantee is weaker than that of a sink behind them."""
    for sink in graph.bolts:
        if not _writes_rows(sink):
            continue
        upstream = graph.upstream([sink.name])
        for spout in graph.spouts:
            given = settings.components[spout.name].values.get("kafka.guarantee")
            if spout.name in upstream and given not in (None, "AT_LEAST_ONCE"):
                yield Finding(
                    False,
                    sink.name,
                    f"{spout.name} has kafka.guarantee = {given}: a record that is lost on the way has no row, though "
                    "each row is written once",
                    "kafka.guarantee=AT_LEAST_ONCE",
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


def _lost_digits(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find decimal columns of sinks that take floats: a bolt that parses JSON without types makes them."""
    for sink in graph.bolts:
        schema = settings.components[sink.name].values.get("parquet.schema") if reads(sink, "parquet") else None
        try:
            wide = {column.name for column in Columns.parse(schema or ()).columns if _is_wide(kind_of(column.kind))}
        except ConfigError:
            continue  # the sink says so
        for given in sink.inputs:
            source = graph.components.get(given.source)
            if source is None or not getattr(source.cls, "makes_floats", False):
                continue
            stream = source.streams.get(given.stream)
            lost = [name for name in (stream.fields if stream else ()) if name in wide]
            if lost and not settings.components[source.name].values.get("parse.types"):
                yield Finding(
                    False,
                    sink.name,
                    f"{', '.join(lost)}: {source.name} has no parse.types, so numbers of JSON come as floats, and a "
                    f"decimal column rejects one of more than {DIGITS_MAX} digits",
                    f"types of {source.name}: with them each digit counts; or texts in the JSON",
                )


_SAMPLES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), (0, 1)),
    **dict.fromkeys(("float32", "float64"), (0.0, 1.5)),
    "string": ("", "1", "2013-01-31", "2013-01-31T12:00:00Z"), "binary": (b"a",), "bool": (True,),
    "decimal": (Decimal(1),), "date": (date(2013, 1, 31),),
    **dict.fromkeys(("timestamp", *EPOCH_UNITS), (datetime(2013, 1, 31, 12, tzinfo=UTC),)),
}  # fmt: skip
"""Values that a parser makes of each type that has no parts: a column that takes none of them takes nothing of it."""


def _other_types(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find columns of sinks that take no value of the type that a parser before them declares."""
    for sink in graph.bolts:
        scope = next((scope for scope in ("parquet", "sql") if reads(sink, scope)), None)
        schema = _declared(settings, sink, f"{scope}.schema") if scope else {}
        for given in sink.inputs:
            source = graph.components.get(given.source)
            types = _declared(settings, source, "parse.types") if source is not None and reads(source, "parse") else {}
            stream = source.streams.get(given.stream) if source is not None else None
            for name in [name for name in (stream.fields if stream else ()) if name in types and name in schema]:
                if not may_fit(types[name], schema[name]):
                    yield Finding(
                        False,
                        sink.name,
                        f"{name} is {types[name]} by parse.types of {given.source}, and {schema[name]} here: each row "
                        "with a value in this column is rejected",
                        f"{name}:{types[name]} in {scope}.schema, or {name}:{schema[name]} in parse.types",
                    )


def _declared(settings: Settings, component: Component, key: str) -> dict[str, str]:
    try:
        columns = Columns.parse(settings.components[component.name].values.get(key) or ()).columns
    except ConfigError:
        return {}  # the component says so
    return {column.name: column.kind for column in columns}


def may_fit(given: str, wanted: str) -> bool:
    """Return whether a column takes some value of a type.

    >>> may_fit("string", "date"), may_fit("string", "int16"), may_fit("float64", "int8"), may_fit("int8", "bool")
    (True, False, True, False)
    """
    samples = _SAMPLES.get(kind_of(given).name)
    if given == wanted:  # to try a value costs the import of pandas, by way of Arrow
        return True
    samples = _SAMPLES.get(kind_of(given).name)
    return samples is None or any(_fits(value, wanted) for value in samples)


def _fits(value: Any, wanted: str) -> bool:
    try:
        to_array([value], wanted)
        return True
    except CONVERSION_ERRORS:
        return False


def _is_wide(kind: Kind) -> bool:
    """Return whether a float may have fewer digits than a value of this type."""
    digits: int = getattr(kind.type, "precision", 0)  # of a decimal
    return digits > DIGITS_MAX or any(_is_wide(part) for part in kind.parts)


def _meetings(graph: Graph) -> Iterator[Finding]:
    """Find bolts where tuples of one record meet again before a sink."""
    # A sink tells its own inputs apart. A bolt before it emits tuples that do not say through which of its own inputs
    # they came; where it hands origins on, two rows have one identity.
    spouts = {spout.name for spout in graph.spouts}
    before = graph.upstream(bolt.name for bolt in graph.bolts if _writes_rows(bolt))
    for bolt in graph.bolts:
        if bolt.name not in before or _writes_rows(bolt):
            continue
        ways = [graph.upstream([source]) for source, _ in _with_origin(graph, bolt)]
        if common := [spout for spout in spouts if sum(spout in way for way in ways) > 1]:
            yield Finding(
                False,
                bolt.name,
                f"tuples of one record of {min(common)!r} reach it through several inputs: if it passes their `origin` "
                "on, a sink takes their rows for one row",
                "in this bolt origin.child(tup.component, 0) for origin; nothing if it makes one row of all of them",
            )


def _shared_directories(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Rows of two sinks may have the same identities: in one directory the second would be taken for replays."""
    seen: list[tuple[str, Path]] = []
    for sink in graph.components.values():
        given = settings.components[sink.name].values.get("parquet.directory") if reads(sink, "parquet") else None
        if not given:
            continue
        place = ObjectPath(given) if is_object_url(given) else Path(given).resolve()
        for name, other in seen:
            if place.is_relative_to(other) or other.is_relative_to(place):
                how = "the same as" if place == other else "within or above"
                yield Finding(
                    True, sink.name, f"parquet.directory = {given} is {how} that of {name}", "a directory for each sink"
                )
        seen.append((sink.name, place))
