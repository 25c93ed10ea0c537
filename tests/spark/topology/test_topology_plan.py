"""The plan of a topology on Spark: stages, owner of the checkpoint, and options of the source."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from streamparse import Bolt, Grouping, Spout, Stream

from downspout.engine import Component, Graph, Input, resolve
from downspout.engine import OutputStream as GraphStream
from downspout.errors import BrokerError, ConfigError, TopologyError
from downspout.spark import (
    PassingError,
    Query,
    Signals,
    StagePlan,
    claim,
    executors,
    parse_options,
    plan,
    run,
    source_options,
    to_json,
    without_effect,
)
from downspout.spark.topology import query as query_module
from downspout.spark.topology.checkpoint_claim import FILE
from downspout.spark.topology.spout_options import dead_letter_topic_of, ends_now
from downspout.spark.topology.stages import is_stateful, part_of
from downspout.testing import FakeKafka, VirtualClock
from tests.spark import topology_bolts as b


class Said(b.Tag):
    stateful: ClassVar[bool] = True


class Denied(b.Count):
    stateful: ClassVar[bool] = False


class Direct(Bolt):
    outputs: ClassVar[Any] = [Stream(["word"], name="picked", direct=True)]

    def process(self, tup: Any) -> None:
        pass


class Numbers(Spout):
    outputs: ClassVar[Any] = ["origin", "value"]

    def next_tuple(self) -> None:
        pass


def confs_of(graph: Graph, **options: Any) -> dict[str, dict[str, Any]]:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return resolve(graph, options=given, environ={}, file=Path("/nonexistent")).confs()


def planned(graph: Graph, **options: Any) -> StagePlan:
    return plan(graph, confs_of(graph, **options))


def shape(made: StagePlan) -> list[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
    return [(stage.entries, stage.inside, stage.exits) for stage in made.stages]


def test_stateless_bolts_and_sinks_are_one_stage(tmp_path: Path) -> None:
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    graph = b.graph_of(spout=spout, split=split, out=b.sink({split: Grouping.fields("word")}, tmp_path, b.WORD))
    made = planned(graph)
    assert shape(made) == [(("spout",), ("split", "out"), ())]
    assert [sink.name for sink in made.sinks] == ["out"]
    assert made.stateful == {}


def test_levels_are_those_of_the_longest_way(tmp_path: Path) -> None:
    """A stateful bolt that is reached directly and past another stateful one belongs to the later stage."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    first = b.Count.spec(inputs={split: Grouping.fields("word")}, par=3)
    between = b.Tag.spec(inputs=[first])
    second = b.Count.spec(inputs={split: Grouping.fields("word"), between: Grouping.fields("word")}, par=2)
    graph = b.graph_of(
        spout=spout, split=split, first=first, between=between, second=second, out=b.sink([second, first], tmp_path)
    )
    made = planned(graph)
    assert shape(made) == [
        (("spout",), ("split",), ("first", "second")),
        (("first",), ("between", "out"), ("second",)),
        (("second",), ("out",), ()),
    ]
    assert made.stateful == {"first": 3, "second": 2}


@pytest.mark.parametrize(
    ("cls", "grouping", "stateful"),
    [
        (b.Count, "fields", True),
        (b.Count, "global", True),
        (b.Count, "all", True),
        (b.Count, "shuffle", False),
        (b.Count, "local_or_shuffle", False),
        (b.Count, "none", False),
        (Said, "shuffle", True),
        (Denied, "fields", False),
    ],
)
def test_what_is_stateful(cls: type, grouping: str, stateful: bool) -> None:
    """A bolt is stateful by its grouping, unless its class says otherwise."""
    assert is_stateful(Component("x", cls, inputs=(Input("split", "default", grouping),))) is stateful


def test_a_bolt_that_ticks_is_told(tmp_path: Path) -> None:
    """Ticks of a stateful bolt need timers, those of a sink or a stateless bolt do not."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout], config={"topology.tick.tuple.freq.secs": 1})
    for config, ticks in ((None, False), ({"topology.tick.tuple.freq.secs": 5}, True)):
        count = b.Count.spec(inputs={split: Grouping.fields("word")}, config=config)
        graph = b.graph_of(spout=spout, split=split, count=count, out=b.sink([count], tmp_path))
        assert planned(graph).ticks is ticks


def test_all_that_spark_has_no_counterpart_for_is_named_at_once() -> None:
    """Direct groupings and streams, other spouts and cycles are refused in one error, with their names and a cure."""
    stream = {"default": GraphStream("default", ("origin", "word"))}
    picked = {"picked": GraphStream("picked", ("word",), direct=True)}
    graph = Graph(
        "t",
        {
            "numbers": Component("numbers", Numbers, streams={"default": GraphStream("default", ("origin", "value"))}),
            "direct": Component("direct", Direct, streams=picked, inputs=(Input("numbers", "default"),)),
            "reader": Component("reader", b.Tag, streams=stream, inputs=(Input("direct", "picked", "direct"),)),
            "one": Component("one", b.Tag, streams=stream, inputs=(Input("two", "default"),)),
            "two": Component("two", b.Tag, streams=stream, inputs=(Input("one", "default"),)),
        },
    )
    with pytest.raises(TopologyError) as caught:
        plan(graph, {name: {} for name in graph.components})
    said = str(caught.value)
    for words in (
        "'t' cannot run on Spark",
        "numbers (Numbers) is not a KafkaSpout",
        "direct emits directly on stream 'picked'",
        "reader has a direct grouping on direct",
        "two → one → two is a cycle, in which a batch would never end",
    ):
        assert words in said
    assert "`downspout run` runs it in one process" in said


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("kafka__guarantee", "AT_MOST_ONCE", "spout demands AT_MOST_ONCE, and Spark repeats a batch"),
        ("kafka__listener", "x.Listener", "spout has a kafka.listener, which needs single tuples"),
        ("kafka__commit", "async", "kafka.commit = async, and the offsets of a query are in Spark's checkpoint"),
        ("kafka__commit", "combined", "spout has kafka.commit = combined, and"),
    ],
)
def test_settings_that_spark_cannot_honour_are_refused(tmp_path: Path, setting: str, value: str, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        planned(b.counting(tmp_path), **{setting: value})


def test_a_bound_that_spark_cannot_keep_is_refused(tmp_path: Path) -> None:
    """run.records would be ignored, and the run never end: it is refused before anything starts."""
    with pytest.raises(ConfigError, match=r"run\.records counts tuple trees"):
        run(b.counting(tmp_path), overrides=["run.records=5"], checkpoint=tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_settings_of_the_local_engine_alone_are_named(tmp_path: Path) -> None:
    """What is given on the command line and has no effect on Spark is said; a file's values may be for local runs."""
    graph = b.counting(tmp_path)
    assert without_effect(resolve(graph, ["run.drain_s=5"], options={"run.workers": 2}, environ={})) == [
        "run.drain_s",
        "run.workers",
    ]
    assert without_effect(resolve(graph, environ={"DOWNSPOUT_RUN_WORKERS": "2"})) == []


def test_a_part_reads_only_what_is_emitted_in_it(tmp_path: Path) -> None:
    """A part of a graph has the inputs that come from within, and the rest of each component as it was."""
    graph = b.counting(tmp_path)
    keep = {name: graph.components[name] for name in ("count", "counts", "words")}
    part = part_of(graph, keep, ["count"])
    assert {name: [given.source for given in c.inputs] for name, c in part.components.items()} == {
        "count": [],
        "counts": ["count"],
        "words": [],
    }
    assert replace(part.components["counts"], inputs=()) == replace(graph.components["counts"], inputs=())


# --- checkpoints --------------------------------------------------------------------------------------


def test_a_checkpoint_is_its_topologys_for_ever(tmp_path: Path) -> None:
    """A new folder becomes the topology's, and gives the same query's name each time; another folder another one."""
    made = planned(b.counting(tmp_path))
    query = claim(tmp_path / "a" / "deep", made)
    assert claim(tmp_path / "a" / "deep", made) == query
    assert claim(tmp_path / "b", made) != query


def test_a_checkpoint_of_another_is_refused(tmp_path: Path) -> None:
    """Another topology, other spouts, other stateful bolts, and timers that were not there are told apart."""
    graph = b.counting(tmp_path)
    made = planned(graph)
    claim(tmp_path / "c", made)
    with pytest.raises(ConfigError, match="is the checkpoint of topology Case, not Other") as caught:
        claim(tmp_path / "c", planned(replace(graph, name="Other")))
    assert "another --checkpoint" in str(caught.value)
    wider = replace(graph.components["count"], par=3)
    with pytest.raises(ConfigError, match=r"keeps the state of count \(2\), and the topology now has count \(3\)"):
        claim(tmp_path / "c", planned(replace(graph, components={**graph.components, "count": wider})))
    with pytest.raises(ConfigError, match="has timers: no, and the topology now has yes"):
        claim(tmp_path / "c", planned(graph, topology__tick__tuple__freq__secs=5))
    entries = replace(made.stages[0], entries=("other",))
    with pytest.raises(ConfigError, match="reads from spout, and the topology now has other"):
        claim(tmp_path / "c", replace(made, stages=(entries, *made.stages[1:])))


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 1}', '{"topology": "Case"}'])
def test_a_damaged_claim_is_refused(tmp_path: Path, content: str) -> None:
    """A claim that is not what we wrote is an error that names the file, and the file stays."""
    made = planned(b.counting(tmp_path))
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigError, match=FILE):
        claim(tmp_path, made)
    assert (tmp_path / FILE).read_text() == content


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    """A folder that holds another program's files is not claimed; nor is a path below a file."""
    made = planned(b.counting(tmp_path))
    (tmp_path / "metadata").write_text("{}")
    with pytest.raises(ConfigError, match="is not the checkpoint of a topology"):
        claim(tmp_path, made)
    with pytest.raises(ConfigError, match="cannot be written"):
        claim(tmp_path / "metadata" / "x", made)


# --- the source's options -----------------------------------------------------------------------------


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka("options") as made:
        made.create_topic("lines", 2)
        made.produce("lines", b"x", partition=0)
        yield made


def options_of(kafka: FakeKafka, records_max: int | None = None, **settings: Any) -> dict[str, str]:
    conf = {"kafka.bootstrap": kafka.bootstrap, "kafka.topics": ["lines"]}
    conf |= {"kafka." + name: value for name, value in settings.items()}
    conf = {name: value for name, value in conf.items() if value is not None}
    return source_options(conf, "group", bounded="stop_offsets" in settings, records_max=records_max)


on_fake = pytest.mark.fake_only("what the options do on a broker is shown by the tests of the source")


@on_fake
@pytest.mark.parametrize("prefix", ["", "UNCOMMITTED_"])
@pytest.mark.parametrize(
    ("start", "more", "expected"),
    [
        ("EARLIEST", {}, {"startingOffsets": "earliest"}),
        ("LATEST", {}, {"startingOffsets": "latest"}),
        (
            "TIMESTAMP",
            {"start_timestamp_ms": 5},
            {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"},
        ),
        (
            "OFFSETS",
            {"start_offsets": ["lines[1]=7"]},
            {"startingOffsets": {"lines": {"0": -2, "1": 7}}},
        ),
    ],
)
def test_where_reading_starts(
    kafka: FakeKafka, prefix: str, start: str, more: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Each of the spout's strategies is an option of the source; the checkpoint stands for the group's commits."""
    given = options_of(kafka, start=prefix + start, **more)
    found = {name: value for name, value in given.items() if name.startswith("starting")}
    if start == "OFFSETS":
        found["startingOffsets"] = json.loads(found["startingOffsets"])
    assert found == expected


@on_fake
def test_the_other_options(kafka: FakeKafka) -> None:
    """Topics, limits, stops, data loss and what is the client's go to the source."""
    client = {"client.fetch_max_bytes": 7}
    given = options_of(kafka, 500, stop_offsets=["lines[0]=9"], on_data_loss="earliest", **client)
    assert given["subscribe"] == "lines"
    assert given["maxOffsetsPerTrigger"] == "500"
    assert json.loads(given["stoppingOffsets"]) == {"lines": {"0": 9}}
    assert given["failOnDataLoss"] == "false"
    assert given["kafka.fetch.max.bytes"] == "7"
    assert given["kafka.bootstrap.servers"] == kafka.bootstrap
    assert options_of(kafka)["failOnDataLoss"] == "true"
    unreadable = ("includeUnreadable", "recordBytesMax")
    assert [options_of(kafka)[name] for name in unreadable] == ["records", str(32 << 20)]
    given = options_of(kafka, on_corrupt_batch="dead_letter", record_bytes_max=2048)
    assert [given[name] for name in unreadable] == ["true", "2048"]
    assert "maxOffsetsPerTrigger" not in options_of(kafka)


@on_fake
def test_a_pattern_leaves_the_dead_letters_out(kafka: FakeKafka) -> None:
    """A pattern that would match the spout's own dead-letter topic does not read it."""
    import re

    given = options_of(kafka, topics=None, pattern=".*")
    assert "subscribe" not in given
    pattern = given["subscribePattern"]
    assert re.fullmatch(pattern, "lines")
    assert not re.fullmatch(pattern, "group.dead-letters")
    assert dead_letter_topic_of({"kafka.dead_letter_topic": ""}, "group") == ""


@on_fake
def test_the_ends_of_now(kafka: FakeKafka) -> None:
    """A bounded run ends at the ends of all partitions that it reads; a topic that is missing is an error."""
    conf = {"kafka.bootstrap": kafka.bootstrap, "kafka.topics": ["lines"]}
    assert {tp.partition: end for tp, end in ends_now(conf, "group").items()} == {0: 1, 1: 0}
    with pytest.raises(BrokerError, match="nothing to read at fake://options"):
        ends_now({**conf, "kafka.topics": ["nowhere"]}, "group")


@on_fake
@pytest.mark.parametrize("start", [{}, {"start": "OFFSETS", "start_offsets": ["lines[0]=1"]}])
def test_the_ends_of_a_pattern_are_those_of_what_is_read(kafka: FakeKafka, start: dict[str, Any]) -> None:
    """A bounded run by a pattern that matches the spout's own dead-letter topic too names only what it reads."""
    kafka.create_topic("group.dead-letters", 1)
    conf = {"kafka.bootstrap": kafka.bootstrap, "kafka.pattern": ".*"}
    given = options_of(kafka, topics=None, pattern=".*", **start)
    given["stoppingOffsets"] = json.dumps(to_json(ends_now(conf, "group")))
    parsed = parse_options(given, streaming=True)
    assert {tp.topic for tp in parsed.stopping} == {"lines"}
    assert {tp.topic for tp in parsed.starting.offsets or {}} == ({"lines"} if start else set())


@pytest.mark.parametrize(
    ("said", "again"),
    [
        ("downspout.errors.BrokerError: h:1: no broker answers. Try: start it", True),
        ("downspout.errors.UnreadableError: t[0]@3: a batch cannot be read. Try: skip it", False),
        ("Python worker failed to connect back", True),
        ("Python worker exited unexpectedly (crashed)", True),
        ("downspout.errors.RecordError: t[0]@3 failed for good", False),
    ],
)
def test_only_what_may_pass_starts_the_query_again(said: str, again: bool) -> None:
    """Without Kafka or a worker a query that has run starts again and says so; what does not pass ends it at once."""
    query, told = object.__new__(Query), list[str]()
    batches = SimpleNamespace(error=None, totals=SimpleNamespace(batches=5))
    vars(query).update(_batches=batches, _outages=0, _done_before=0, _report=told.append, _received=[2])
    running: Any = SimpleNamespace(lastProgress={"batchId": 4})
    assert query._begins_again(running, Exception(f"org.apache.spark.X: Traceback …\n{said}\n at org.apache")) is again
    assert [text.endswith("restarting the query in 2 s") for text in told] == [True] * again


def test_a_python_process_that_dies_while_the_query_starts_is_tried_again() -> None:
    """Planning starts Python processes as well as a batch does; what does not pass ends the run at once."""
    query, told, tries = object.__new__(Query), list[str](), list[int]()
    batches = SimpleNamespace(error=None, number=3, totals=SimpleNamespace(batches=0))
    vars(query).update(_batches=batches, _outages=0, _done_before=0, _report=told.append, _received=[])

    def start(session: Any, options: Any, trigger_s: float) -> Any:
        tries.append(1)
        if len(tries) == 2:
            return "running"
        raise Exception("Python worker exited unexpectedly" if len(tries) == 1 else "a mistake")

    vars(query).update(_start=start, _wait=lambda running: running, _pause=told.append)
    attempts: list[Any] = [query._attempt(None, {}, 0.0) for _ in range(2)]
    assert attempts == [None, "running"]
    with pytest.raises(Exception, match="a mistake"):
        query._attempt(None, {}, 0.0)
    assert told == ["a Python process of Spark's died; restarting the query"]
    query._outages = 10
    tries.clear()
    said = "a Python process of Spark's died, 11 times in a row; batch 3 is not committed"
    with pytest.raises(PassingError, match=said):
        query._attempt(None, {}, 0.0)


@pytest.mark.parametrize(("late", "ends_by"), [(0, None), (3, None), (11, "PassingError"), (99, "signal")])
def test_a_python_worker_that_is_late_for_the_first_look_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, late: int, ends_by: str | None
) -> None:
    """The look at the executors is repeated, each time with a line, up to ten times in a row or to a signal."""
    from pyspark.errors import PySparkRuntimeError

    signals, told, clock, tries = Signals(), list[str](), VirtualClock(), []

    def check(spark: Any, modules: Any, path: Any) -> int:
        tries.append(signals.doing())
        if ends_by == "signal" and len(tries) == 3:
            signals.received.append(signal.SIGINT)
        if len(tries) <= late:
            error = PySparkRuntimeError("Job aborted: SparkException: Python worker failed to connect back.\n\tat x")
            context: Any = SimpleNamespace(pythonExec="python3")
            executors._translated(context, lambda: (_ for _ in ()).throw(error))
        return 1

    monkeypatch.setattr(query_module, "check_executors", check)
    monkeypatch.setattr(query_module, "SYSTEM_CLOCK", clock)
    query, session = object.__new__(Query), SimpleNamespace()
    given = {"_signals": signals, "_received": signals.received, "_report": told.append, "_outages": 0}
    vars(query).update(given, _modules=[], _path=[])
    if ends_by == "PassingError":
        with pytest.raises(PassingError, match="a Python worker of Spark's did not start within 10 s"):
            query._look_at_executors(session)
    else:
        query._look_at_executors(session)
        assert query._outages == 0
    expected = {"signal": 3, None: late, "PassingError": 10}[ends_by]
    again = "a Python worker of Spark's did not start within 10 s; trying again in"
    assert told == [f"{again} {min(2 ** (n + 1), 16)} s" for n in range(expected)]
    assert set(tries) == {"a Python worker to import the topology"}


def test_a_query_that_is_asked_to_end_before_it_has_begun_does_not_start() -> None:
    """A signal while Spark or a worker starts costs no start of the query."""
    query, session = object.__new__(Query), SimpleNamespace()
    vars(query).update(_values={"run.until": "end"}, _plan=SimpleNamespace(ticks=False), _received=[signal.SIGINT])
    assert query._until_it_ends(session, {"spout": {}}, 0.0) == "signal"


@pytest.mark.parametrize(
    ("spouts", "ticks", "until", "ends", "markers"),
    [
        (1, True, "end", ["end"], ["true"]),
        (2, True, "end", ["end", "end"], ["false", "true"]),
        (2, True, "end", [None, "end", None, "end"], ["false", "false", "true", "true"]),
        (2, True, "end", ["signal"], ["false"]),
        (2, False, "end", ["end"], ["false"]),
        (1, True, None, ["signal"], ["false"]),
    ],
)
def test_the_last_tick_is_behind_the_records_of_all_spouts(
    spouts: int, ticks: bool, until: str | None, ends: list[str | None], markers: list[str]
) -> None:
    """One spout has its end marker with its last records, several once all are done; a run without end none."""
    query, left, found = object.__new__(Query), iter(ends), []
    vars(query).update(_values={"run.until": until}, _plan=SimpleNamespace(ticks=ticks), _received=[])
    given = {f"spout{number}": {"subscribe": "t"} for number in range(spouts)}

    def start(session: Any, options: Any, trigger_s: float) -> Any:
        (marker,) = {one["endMarker"] for one in options.values()}
        found.append(marker)

    vars(query).update(_start=start, _wait=lambda running: next(left))
    session: Any = None
    assert query._until_it_ends(session, given, 0.0) == ends[-1]
    assert found == markers
