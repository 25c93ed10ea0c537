"""The findings of `downspout check`, without running anything."""

from dataclasses import replace

import pytest
import streamparse

from bolts.kafka import KafkaBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.engine import Component, Graph, Input, OutputStream, RunResult, from_class
from downspout.errors import ConfigError, TopologyError
from downspout.run import live_view as live
from downspout.run import runner
from downspout.run import topology_check as check
from spouts.kafka import KafkaSpout


class KafkaLike(streamparse.Spout):
    settings_scopes = ("kafka",)


class Sink(streamparse.Bolt):
    settings_scopes = ("parquet",)


class Needy(streamparse.Bolt):
    requires = ("origin", "value")


class Batches(streamparse.BatchingBolt):
    pass


GOOD = {"parquet.directory": "out", "parquet.schema": ["value:string"]}


def graph(fields=("origin", "value"), spout=None, sink=None, topology=None, **more):
    """Return a topology that has nothing wrong, changed as asked."""
    components = {
        "in": Component(
            "in",
            KafkaLike,
            1,
            {"kafka.topics": ["t"], **(spout or {})},
            {"default": OutputStream("default", tuple(fields))},
        ),
        "out": Component("out", Sink, config=GOOD | (sink or {}), inputs=(Input("in", "default"),)),
        **more,
    }
    return Graph("g", components, topology or {})


def diamond(meet, *, spouts=("in", "in")):
    """Return a topology in which two bolts read a record each; ``meet``: before the sink, in one bolt."""
    made = graph(more=Component("more", KafkaLike, 1, {"kafka.topics": ["u"]}, {}))
    streams = made.components["in"].streams
    parts = {**made.components, "more": replace(made.components["more"], streams=streams)}
    for name, spout in zip(("left", "right"), spouts, strict=True):
        parts[name] = Component(name, streamparse.Bolt, streams=streams, inputs=(Input(spout, "default"),))
    both = (Input("left", "default"), Input("right", "default"))
    if meet:
        parts["meet"] = Component("meet", streamparse.Bolt, streams=streams, inputs=both)
        both = (Input("meet", "default"),)  # type: ignore[assignment]
    parts["out"] = replace(made.components["out"], inputs=both)
    return Graph("g", parts, {})


@pytest.mark.parametrize(("meet", "spouts", "warned"), [
    (False, ("in", "in"), False), (True, ("in", "in"), True), (True, ("in", "more"), False),
])  # fmt: skip
def test_rows_of_one_record_may_meet_in_a_sink_but_not_in_a_bolt_before(meet, spouts, warned):
    """A sink tells its inputs apart; a bolt that hands origins of one record on from two inputs is warned of."""
    text = [line for line in found(diamond(meet, spouts=spouts)) if "no bolt reads" not in line]
    starts = ["warning: meet: tuples of one record of 'in' reach it through several inputs"] * warned
    assert len(text) == len(starts)
    assert all(line.startswith(start) for line, start in zip(text, starts, strict=True))


def found(made):
    return [str(finding) for finding in check.findings(made, check.resolve(made, environ={}))]


class Counter(streamparse.Bolt):
    def process_tick(self, tup):
        pass


class Quiet(Counter):
    auto_ack = False


@pytest.mark.parametrize(
    ("cls", "warned"), [(Counter, True), (Quiet, False), (Batches, False), (streamparse.Bolt, False)]
)
def test_a_bolt_that_acks_before_it_emits_is_told(cls, warned):
    """What it holds is lost at a crash: of the rows behind it nothing better is said either."""
    streams = {"default": OutputStream("default", ("value",))}
    made = graph(more=Component("more", cls, streams=streams, inputs=(Input("in", "default"),)))
    sink = replace(made.components["out"], inputs=(Input("more", "default"),))
    said = [line for line in found(Graph("g", {**made.components, "out": sink}, {})) if "acks" in line]
    assert [line.partition(": ")[2].partition(":")[0] for line in said] == (["out", "more"] if warned else [])
    if warned:
        assert "rows may be missing after a crash or counted twice, since more acks before it emits" in said[0]
        assert "a retried tuple counts twice. Try: AggregateBolt or StateBolt" in said[1]


@pytest.mark.parametrize(("given", "said"), [
    ({"mapper": "foo.bar"}, "produce.mapper = 'foo.bar' cannot be imported: No module named 'foo'"),
    ({"fields": ["value"]}, "produce.fields: 'value' is not part=field"),
    ({"callback": "foo.bar"}, "produce.callback = 'foo.bar' cannot be imported"),
    ({"partitioner": "foo.bar"}, "produce.partitioner = 'foo.bar' cannot be imported"),
    ({"topic": "bad name!"}, "produce.topic = 'bad name!' cannot be a topic's name. Try: letters, digits, dots"),
    ({"topic": "..", "mapper": "os.getcwd"}, "produce.topic = '..' cannot be a topic's name"),
    ({"bootstrap": "nope:99999"}, "produce.bootstrap = 'nope:99999': 'nope:99999' is not an address"),
    ({}, None),
])  # fmt: skip
def test_what_a_kafka_bolt_could_not_start_with_is_found(given, said):
    """Functions that cannot be imported, and addresses that are none."""
    config = {f"produce.{name}": value for name, value in ({"topic": "t", "fields": ["message=value"]} | given).items()}
    made = graph(out=Component("out", KafkaBolt, 1, config, inputs=(Input("in", "default"),)))
    assert [line.removeprefix("error: out: ").startswith(str(said)) for line in found(made) if "error: " in line] == (
        [True] if said else []
    )


@pytest.mark.parametrize(("source", "bolt", "spout", "warned"), [
    ("in", {"produce.topic": "t"}, {}, True), ("in", {"produce.topic": "u"}, {}, False),
    ("other", {"produce.topic": "t"}, {}, False), ("in", {"produce.topic": "t", "produce.bootstrap": "b:1"}, {}, False),
    ("in", {"produce.topic": "t"}, {"kafka.topics": None, "kafka.pattern": "t|u"}, True),
    ("in", {"produce.topic": "t"}, {"kafka.topics": None, "kafka.pattern": "t("}, False),
])  # fmt: skip
def test_a_bolt_that_writes_to_its_own_spouts_topic_is_found(source, bolt, spout, warned):
    """Its records would come back for ever; those for another spout, or to other brokers, would not."""
    streams = {"default": OutputStream("default", ("value",))}
    made = graph(
        spout=spout,
        other=Component("other", KafkaLike, 1, {"kafka.topics": ["v"]}, streams),
        back=Component(
            "back", KafkaBolt, 1, {"produce.fields": ["message=value"], **bolt}, inputs=(Input(source, "default"),)
        ),
    )
    line = "warning: back: it writes to t, which in reads: its records come back to it. Try: another topic"
    assert [each.startswith(line) for each in found(made) if "warning: back" in each] == [True] * warned


def test_nothing_is_found_where_nothing_is_wrong():
    assert found(graph()) == []


FINDINGS = {
    "a translator that is not there": (
        {"spout": {"kafka.translator": ["foo.bar"]}},
        "error: in: kafka.translator = 'foo.bar' cannot be imported: No module named 'foo'",
    ),
    "a translator that takes no record": (
        {"spout": {"kafka.translator": ["os.getcwd"]}},
        "error: in: kafka.translator: os.getcwd cannot be called with one record",
    ),
    "a translator that is not a function": (
        {"spout": {"kafka.translator": ["os.sep"]}}, "error: in: kafka.translator: os.sep is not a function",
    ),
    "a listener that is none": (
        {"spout": {"kafka.listener": "json.loads"}}, "error: in: kafka.listener = 'json.loads' is not a SpoutListener",
    ),
    "a listener that is not there": (
        {"spout": {"kafka.listener": "foo.Bar"}}, "error: in: kafka.listener = 'foo.Bar' cannot be imported",
    ),
    "an address that is none": (
        {"spout": {"kafka.bootstrap": "nope:99999"}},
        "error: in: kafka.bootstrap = 'nope:99999': 'nope:99999' is not an address",
    ),
    "a property that the client does not have": (
        {"spout": {"kafka.client.fetch_max_byte": 1}},
        "error: in: kafka.client.fetch_max_byte is not a property of kafka-python's consumer. "
        "Try: kafka.client.fetch_max_bytes",
    ),
    "counted out among several processes": (
        {"spout": {"kafka.mode": "assign", "run.member": 2}}, "error: in: kafka.mode = assign counts the tasks of one",
    ),
    "a secret that is not here": (
        {"spout": {"kafka.client.sasl_plain_password": "env:NOT_SET_ANYWHERE"}},
        "warning: in: kafka.client.sasl_plain_password = 'env:NOT_SET_ANYWHERE': NOT_SET_ANYWHERE is not in the",
    ),
    "no topic": ({"spout": {"kafka.topics": None}}, "error: in: exactly one of kafka.topics and kafka.pattern"),
    "topics and pattern": (
        {"spout": {"kafka.pattern": "t.*"}},
        "error: in: exactly one of kafka.topics and kafka.pattern must be set, and both are. Try: remove one of them",
    ),
    "a file in the way": (
        {"sink": {"parquet.directory": "/dev/null/out"}},
        "error: out: parquet.directory = /dev/null/out cannot be made: /dev/null is a file",
    ),
    "a name that is too long": (
        {"sink": {"parquet.directory": "x" * 300}},
        f"error: out: parquet.directory = {'x' * 300} cannot be made: File name too long",
    ),
    "no directory": ({"sink": {"parquet.directory": None}}, "error: out: parquet.directory is not set"),
    "age": ({"sink": {"parquet.flush_age_s": 11}}, "error: out: parquet.flush_age_s = 11 is more than a third"),
    "age against the topology's timeout": (
        {"topology": {"topology.message.timeout.secs": 12}},
        "error: out: parquet.flush_age_s = 8 is more than a third of the message timeout of 12 s",
    ),
    "near miss": (
        {"topology": {"topology.message.timeout.sec": 60}},
        "warning: g: topology.message.timeout.sec is not a setting of Storm's, and has no effect there. Try: topology",
    ),
    "near miss of one component": (
        {"spout": {"storm.message.timeout.secs": 60}},
        "warning: in: storm.message.timeout.secs is not a setting of Storm's, and has no effect there. Try: topology",
    ),
    "weak guarantee": ({"spout": {"kafka.guarantee": "AT_MOST_ONCE"}}, "warning: out: in has kafka.guarantee ="),
    "no origin": ({"fields": ("value",)}, "warning: out: stream 'default' of 'in' has no field `origin`"),
    "column": (
        {"sink": {"parquet.schema": ["valu:string"]}},
        "error: out: column 'valu' of parquet.schema is not a field of stream 'default' of 'in'. Try: 'value'",
    ),
    "stall": (
        {"spout": {"topology.max.spout.pending": 100}},
        "warning: in: topology.max.spout.pending = 100 per task is below parquet.flush_rows = 100,000 of out",
    ),
    "no ackers": ({"topology": {"topology.acker.executors": 0}}, "warning: out: without ackers"),
    "setting nobody reads": ({"sink": {"kafka.group": "g"}}, "warning: out: kafka.group is set, but Sink does not"),
    "unreachable": (
        {"lost": Component("lost", streamparse.Bolt, streams={"default": OutputStream("default", ("a",))},
                           inputs=(Input("lost", "default"),))},
        "error: lost: no spout's tuples reach it",
    ),
    "bad wiring": (
        {"lost": Component("lost", streamparse.Bolt, inputs=(Input("in", "other"),))},
        "error: g: lost reads stream 'other' of 'in'",
    ),
    "field that a bolt needs": (
        {"fields": ("value",), "more": Component("more", Needy, inputs=(Input("in", "default"),))},
        "error: more: stream 'default' of 'in' lacks 'origin', which Needy needs. Try: fields=[\"origin\", \"value\"]",
    ),
    "batches without ticks": (
        {"more": Component("more", Batches, inputs=(Input("in", "default"),))},
        "warning: more: Batches is a BatchingBolt and gets no ticks",
    ),
    "one directory": (
        {"second": Component("second", Sink, config=GOOD | {"parquet.directory": "./out"},
                             inputs=(Input("in", "default"),))},
        "error: second: parquet.directory = ./out is the same as that of out",
    ),
    "a directory within another's": (
        {"second": Component("second", Sink, config=GOOD | {"parquet.directory": "out/more"},
                             inputs=(Input("in", "default"),))},
        "error: second: parquet.directory = out/more is within or above that of out",
    ),
    "a name for what is no input": (
        {"sink": {"parquet.input_names": ["nin=in"]}}, "error: out: parquet.input_names: 'nin' is not an input",
    ),
    "a name for an input without origin": (
        {"fields": ("value",), "sink": {"parquet.input_names": ["in=old"]}},
        "error: out: parquet.input_names: 'in' is not an input of this sink with the field `origin`. Try: remove it",
    ),
    "a setting of the whole run": (
        {"sink": {"run.drain_s": 5}}, "warning: out: run.drain_s is a setting of the whole run: here it has no effect",
    ),
    "unread": (
        {"more": Component("more", streamparse.Spout, streams={"default": OutputStream("default", ("a",))})},
        "warning: more: no bolt reads its stream 'default'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "finding"), FINDINGS.values(), ids=FINDINGS)
def test_what_is_wrong_is_found(change, finding):
    """Each mistake is found by itself, with the component's name."""
    findings = found(graph(**change))
    assert any(line.startswith(finding) for line in findings), findings


def test_values_show_their_source_and_no_secret():
    """The table says where each value came from, and hides passwords."""
    made = graph(spout={"kafka.client.sasl_plain_password": "hunter2"})
    table = check.values_table(
        made, check.resolve(made, ["kafka.group=g"], environ={"DOWNSPOUT_PARQUET_DIRECTORY": "e"})
    )
    assert "kafka.group = g  (command line)" in table
    assert "parquet.directory = e  (environment)" in table
    assert "hunter2" not in table
    assert "in:default by shuffle" in table


def test_a_run_refuses_an_input_that_lacks_a_needed_field():
    """The runner raises before anything is built, and names the field and the cure."""
    made = graph(fields=("value",), more=Component("more", Needy, inputs=(Input("in", "default"),)))
    with pytest.raises(TopologyError, match="lacks 'origin', which Needy needs"):
        runner.run(made)


@pytest.mark.parametrize(("count", "words"), [(1, "1 dead letter was"), (2000, "2,000 dead letters were")])
def test_dead_letters_are_told_at_the_end(count, words):
    """The line names how many letters were written to the topic, by spouts and bolts, and how to look at them."""
    reports = {"in": {"dead_lettered": 1}, "bolt": {"dead_lettered": count - 1}, "sink": {}}
    result = RunResult("end", True, 1.0, {}, 1, 1, 0, 0, None, None, reports=reports)
    (line,) = live.dead_letter_lines(result, dict.fromkeys(("in", "bolt"), "g.dead-letters"))
    assert line.startswith(f"{words} written to topic g.dead-letters: look at ")
    assert line.endswith("with `downspout dlq ls g.dead-letters`")
    assert live.dead_letter_lines(RunResult("end", True, 1.0, {}, 1, 1, 0, 0, None, None), {}) == []


def test_a_time_between_commits_has_an_end():
    """A number with too many zeros is refused: nothing would be committed while anybody waits."""
    with pytest.raises(ConfigError, match=r"kafka\.commit_period_ms = .* is above 86,400,000"):
        found(graph(spout={"kafka.commit_period_ms": 999_999_999_999_999_999}))


def test_what_storms_ui_reads_is_no_value_of_ours():
    """The keys by which Storm's UI finds a spout's topics repeat our settings, and are not listed beside them."""
    made = graph(spout={"config.topics": "t", "config.groupid": "g", "config.bootstrap.servers": "one:9092"})
    table = check.values_table(made, check.resolve(made, environ={}), everything=True)
    assert "kafka.topics = ['t']" in table
    assert "config." not in table


class Letters(streamparse.Bolt):
    settings_scopes = ("kafka",)


@pytest.mark.parametrize(("spout", "bolt", "topology", "warned"), [
    ({}, {}, {}, False), ({}, {}, {"kafka.group": "all"}, False), ({"kafka.group": "own"}, {}, {}, True),
    ({"kafka.group": "own"}, {"kafka.group": "own"}, {}, False), ({}, {"kafka.dead_letter_topic": ""}, {}, True),
])  # fmt: skip
def test_bolts_write_dead_letters_where_the_spout_does(spout, bolt, topology, warned):
    letters = Component("letters", Letters, config=bolt, inputs=(Input("in", "default"),))
    text = [line for line in found(graph(spout=spout, topology=topology, letters=letters)) if "dead letters" in line]
    assert len(text) == warned
    assert all("warning: letters: it writes dead letters to " in line for line in text)


@pytest.mark.parametrize(("kind", "types", "warned"), [
    ("decimal(20,2)", None, True), ("list<decimal(20,2)>", None, True), ("decimal(15,2)", None, False),
    ("float64", None, False), ("decimal(20,2)", {"amount": "decimal(20,2)"}, False),
])  # fmt: skip
def test_a_decimal_column_that_is_given_floats_is_warned_of(kind, types, warned):
    """JSON that is parsed without types gives floats, which hold 15 digits: a decimal of more is named."""

    class Made(streamparse.Topology):
        spout = KafkaSpout.spec(topics=["t"], fields=["origin", "value"])
        parse = JsonParseBolt.spec(inputs=[spout], fields=["amount"], types=types)
        sink = ParquetBolt.spec(inputs=[parse], directory="out", schema={"amount": kind})

    said = [line for line in found(from_class(Made, "Made")) if "digits" in line]
    assert len(said) == warned
    assert all(line.startswith("warning: sink: amount: parse has no parse.types") for line in said)


@pytest.mark.parametrize(("parsed", "kind", "warned"), [
    ("string", "int16", True), ("int16", "string", True), ("timestamp", "date", True), ("bool", "int8", True),
    ("string", "timestamp", False), ("float64", "int16", False), ("int64", "decimal(9,2)", False),
    ("list<string>", "string", False), ("string", "string", False),
])  # fmt: skip
def test_a_column_of_another_type_than_its_parser_declares_is_warned_of(parsed, kind, warned):
    """Where a sink takes no value of what the parser before it makes, both types are named, and rows are not lost."""

    class Made(streamparse.Topology):
        spout = KafkaSpout.spec(topics=["t"], fields=["origin", "value"])
        parse = JsonParseBolt.spec(inputs=[spout], fields=["amount"], types={"amount": parsed})
        sink = ParquetBolt.spec(inputs=[parse], directory="out", schema={"amount": kind})

    said = [line for line in found(from_class(Made, "Made")) if "rejected" in line]
    assert said == [
        f"warning: sink: amount is {parsed} by parse.types of parse, and {kind} here: each row with a value in this "
        f"column is rejected. Try: amount:{parsed} in parquet.schema, or amount:{kind} in parse.types"
    ] * warned  # fmt: skip
