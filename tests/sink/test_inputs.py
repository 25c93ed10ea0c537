"""The steps of a sink's inputs: one for each, found again at every start, and never another row's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pystorm.component import Tuple

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.engine import component_of
from downspout.errors import ConfigError, SinkError
from downspout.ledger import Origin
from downspout.sink.identity import KnownInputs, check_names, ends_in_step, name_of, resolve, with_step
from tests.sink.support import rows_of, sink
from topologies.flight_enrich import FLIGHT_FIELDS, FlightEnrichBolt

NAMES = st.text("ab@:/%.=, é0", min_size=1, max_size=5)
PATHS = st.lists(st.sampled_from(["split.0", "a", "@a", "b:@a.1", ""]), max_size=3).map("/".join)


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_inputs_never_have_one_name(component: str, stream: str, other: str, other_stream: str) -> None:
    """Whatever components and streams are called, the name of an input tells both."""
    if (component, stream) != (other, other_stream):
        assert name_of(component, stream) != name_of(other, other_stream)


@given(PATHS, st.none() | NAMES, PATHS, st.none() | NAMES)
def test_two_rows_never_get_one_path(path: str, component: str | None, other: str, other_component: str | None) -> None:
    """Paths that bolts may make, with any two steps or none, differ where path or step differ."""
    assume(not ends_in_step(path) and not ends_in_step(other))
    step, other_step = name_of(component) if component else "", name_of(other_component) if other_component else ""
    assert (with_step(path, step) == with_step(other, other_step)) == ((path, step) == (other, other_step))


def known(*entries: Mapping[str, str]) -> KnownInputs:
    made = KnownInputs()
    for steps in entries:
        made.take(steps)
    return made


A, AB = {"a": ""}, {"a": "", "b": "b"}
STEPS: dict[str, tuple[Sequence[Mapping[str, str]], dict[str, str], dict[str, str]]] = {
    # the directory's entries; what parquet.input_names says; the inputs and the steps that they should have
    "one input, new": ([], {}, {"a": ""}),
    "two inputs, new": ([], {}, {"a": "a", "b": "b"}),
    "one input, named": ([], {"a": "x"}, {"a": "x"}),
    "the same one": ([A], {}, {"a": ""}),
    "the only one has another name": ([A], {}, {"c": ""}),
    "the only one is other rows": ([A], {"c": "c"}, {"c": "c"}),
    "a second one": ([A], {}, {"b": "b", "a": ""}),
    "the second one alone": ([AB], {}, {"b": "b"}),
    "the second one, later renamed": ([AB, {"b": "b"}], {}, {"c": "b"}),
    "the first one comes back": ([AB, {"b": "b"}], {}, AB),
    "one of two renamed": ([AB], {"c": "b"}, {"a": "", "c": "b"}),
    "one of two replaced": ([AB], {"c": "c"}, {"a": "", "c": "c"}),
    "renamed and one more": ([AB], {"c": "b"}, {"a": "", "c": "b", "d": "d"}),
    "renamed, remembered": ([AB, {"a": "", "c": "b"}], {}, {"a": "", "c": "b"}),
    "both renamed": ([AB], {"c": "b", "d": ""}, {"c": "b", "d": ""}),
    "the old name is new rows": ([A, {"c": ""}], {}, {"c": "", "a": "a"}),
    "two that are one": ([AB], {"b": "b", "c": "b"}, {"b": "b", "c": "b"}),
    "none": ([AB], {}, {}),
}


@pytest.mark.parametrize(("entries", "names", "steps"), STEPS.values(), ids=STEPS)
def test_each_input_has_the_step_it_always_had(
    entries: Sequence[Mapping[str, str]], names: dict[str, str], steps: dict[str, str]
) -> None:
    """An input that the directory knows keeps its step, a new one gets one that nobody had."""
    assert resolve("out", list(steps), names, known(*entries), has_rows=bool(entries)) == steps


UNCLEAR: dict[str, tuple[Sequence[Mapping[str, str]], dict[str, str], list[str], str]] = {
    "one of two has another name": ([AB], {}, ["a", "c"], r"reads c and no longer b, .*\{\"c\": \"b\"\} for the same"),
    "the first of two": ([AB], {}, ["c", "b"], r"reads c and no longer a, .*\{\"c\": \"\"\} for the same"),
    "one became two": ([A], {}, ["c", "d"], "reads c, d and no longer a"),
    "two became one": ([AB], {}, ["c"], "reads c and no longer a, b"),
    "an old name beside its heir": ([AB, {"a": "", "c": "b"}], {}, ["a", "b", "c"], "b and c would both be 'b'"),
    "only one of two says so": ([AB], {"c": "b"}, ["a", "b", "c"], "b and c would both be 'b'"),
    "another name for rows that are there": ([AB], {"b": "x"}, ["a", "b"], "calls b 'x', but its rows .* 'b'"),
    "a name that nobody has": (
        [AB],
        {"c": "bb"},
        ["a", "c"],
        "'bb', but no rows there have that name.*c= or c=b or c=c",
    ),
}


@pytest.mark.parametrize(("entries", "names", "present", "message"), UNCLEAR.values(), ids=UNCLEAR)
def test_what_only_the_user_knows_is_asked(
    entries: Sequence[Mapping[str, str]], names: dict[str, str], present: list[str], message: str
) -> None:
    """Where it cannot be told whose rows are in the directory, nothing is guessed; the error says what to write."""
    with pytest.raises(SinkError, match=message) as caught:
        resolve("out", present, names, known(*entries), has_rows=True)
    assert caught.value.cure


@pytest.mark.parametrize("declared", [["a"], ["=a"], ["x=a"], ["a=b", "a=c"], ["a=b/c"]])
def test_names_that_make_no_sense_are_refused(declared: list[str]) -> None:
    """An entry without =, with an input that is none or comes twice, or with a name of several steps, is an error."""
    with pytest.raises(ConfigError, match=r"parquet\.input_names"):
        check_names(declared, ["a", "b"])


# --- sinks -------------------------------------------------------------------------------------------------


def make(directory: Path, *inputs: str, cls: Any = ParquetBolt, **conf: Any) -> Any:
    given = {"parquet.schema": ["word:string"], **conf}
    pairs = [(name.partition(":")[0], name.partition(":")[2] or "default") for name in inputs]
    return sink(cls, directory, fields=["origin", "word"], inputs=pairs, **given)


def put(bolt: Any, source: str, *offsets: int, path: str = "") -> None:
    """Give a sink tuples of one of its inputs, and let it flush."""
    component, _, stream = source.partition(":")
    for offset in offsets:
        values = (Origin("t", "id", 0, offset, path), f"{source} {offset}")
        bolt.process(Tuple(f"{source} {offset} {path}", component, stream or "default", 2, values))
    bolt.drain()


def found(directory: Path) -> list[tuple[str, str]]:
    return sorted((row["word"], row["_path"]) for row in rows_of(directory))


def test_rows_of_two_inputs_with_one_origin_are_two_rows(tmp_path: Path) -> None:
    """Across flushes, within one and across tasks, each input has its row of a record, and its replays are dropped."""
    one, other = make(tmp_path, "a", "b", "b:late"), make(tmp_path, "a", "b", "b:late")
    put(one, "a", 1)
    put(other, "b", 1)
    put(other, "b:late", 1, path="split.0")
    put(one, "b", 1, 2)
    put(other, "a", 1, 2, 2)
    assert found(tmp_path) == [
        ("a 1", "@a"), ("a 2", "@a"), ("b 1", "@b"), ("b 2", "@b"), ("b:late 1", "split.0/@b:late")
    ]  # fmt: skip
    assert (len(one.acked), len(other.acked), one.failed, other.failed) == (3, 5, {}, {})


def test_a_second_input_changes_nothing_for_the_first(tmp_path: Path) -> None:
    """Rows of the only input have no step, and are known again when there are more inputs, and fewer again."""
    put(make(tmp_path, "a"), "a", 1, 2)
    both = make(tmp_path, "b", "a")
    put(both, "a", 2, 3)
    put(both, "b", 2, 3)
    put(make(tmp_path, "b"), "b", 3, 4)
    put(make(tmp_path, "a"), "a", 3, 4)
    assert found(tmp_path) == [
        ("a 1", ""), ("a 2", ""), ("a 3", ""), ("a 4", ""), ("b 2", "@b"), ("b 3", "@b"), ("b 4", "@b")
    ]  # fmt: skip


def test_a_renamed_input_is_known_again(tmp_path: Path) -> None:
    """The only input by itself, one of several by parquet.input_names; without them the sink does not start."""
    put(make(tmp_path, "parse"), "parse", 1)
    put(make(tmp_path, "enrich"), "enrich", 1, 2)
    put(make(tmp_path, "enrich", "more"), "more", 1)
    with pytest.raises(SinkError, match="reads most and no longer more"):
        make(tmp_path, "enrich", "most")
    spec = ParquetBolt.spec(name="sink", directory="x", schema={"word": "string"}, input_names={"most": "more"})
    names = component_of(spec).config["parquet.input_names"]
    put(make(tmp_path, "enrich", "most", **{"parquet.input_names": names}), "most", 1, 2)
    put(make(tmp_path, "enrich", "most"), "most", 2, 3)
    assert [word for word, _ in found(tmp_path)] == ["enrich 2", "more 1", "most 2", "most 3", "parse 1"]


def test_two_versions_on_an_empty_directory_agree(tmp_path: Path) -> None:
    """Whose entry is first decides what the inputs are called, also where the other one had made its files already."""
    alone, both = make(tmp_path, "a"), make(tmp_path, "a", "b")
    assert (alone.writer.steps, both.writer.steps) == ({"a": ""}, {"a": "a", "b": "b"})
    append = both.writer.log.append

    def after_the_other(entry: Any) -> bool:
        both.writer.log.append = append
        put(alone, "a", 1)
        return bool(append(entry))

    both.writer.log.append = after_the_other
    put(both, "a", 1, 2)
    put(both, "b", 1)
    assert found(tmp_path) == [("a 1", ""), ("a 2", ""), ("b 1", "@b")]
    assert sorted(both.acked) == ["a 1 ", "a 2 ", "b 1 "]


def test_inputs_that_are_said_to_be_one_are_one(tmp_path: Path) -> None:
    """Two inputs with one name have each row once; a row that differs within a flush fails by name."""
    bolt = make(tmp_path, "a", "b", **{"parquet.input_names": ["a=x", "b=x"]})
    put(bolt, "a", 1)
    put(bolt, "b", 1)
    bolt.process(Tuple("1", "a", "default", 2, (Origin("t", "id", 0, 2, ""), "same")))
    bolt.process(Tuple("2", "b", "default", 2, (Origin("t", "id", 0, 2, ""), "same")))
    bolt.process(Tuple("3", "b", "default", 2, (Origin("t", "id", 0, 2, ""), "another")))
    bolt.drain()
    assert found(tmp_path) == [("a 1", "@x"), ("same", "@x")]
    assert list(bolt.failed) == ["3"]


def test_a_path_that_only_a_sink_may_make_fails(tmp_path: Path) -> None:
    """A bolt that ends a path in a sink's step fails with the path named, so no row can pass for another input's."""
    bolt = make(tmp_path, "a")
    put(bolt, "a", 1, path="split.0/@b")
    assert "ends as only a sink may end it" in bolt.failed["a 1 split.0/@b"]
    assert rows_of(tmp_path) == []


def test_aggregates_add_up_the_rows_of_each_input(tmp_path: Path) -> None:
    """Counts of two inputs with the same origins are the counts of both, whatever is replayed."""
    conf = {"parquet.keys": ["word"], "parquet.aggregates": ["count"]}
    one, other = (make(tmp_path, "a", "b", cls=AggregateBolt, **conf) for _ in range(2))
    for bolt in (one, other, one):
        put(bolt, "a", 1, 2)
        put(bolt, "b", 1)
    counts = {row["word"]: row["count"] for row in rows_of(tmp_path)}
    assert counts == {"a 1": 1, "a 2": 1, "b 1": 1}
    assert len(rows_of(tmp_path)) == 3


STORM = {
    "source->stream->fields": {
        "parse": {"default": ["origin", "word"], "rejects": ["value"]}, "__system": {"__tick": ["rate_secs"]}
    },
    "source->stream->grouping": {"parse": {"default": {"type": "SHUFFLE"}}, "__system": {"__tick": {"type": "ALL"}}},
}  # fmt: skip


def test_streams_that_a_sink_does_not_read_are_no_inputs(tmp_path: Path) -> None:
    """Storm tells the fields of all streams of a source; only those with a grouping are inputs."""
    bolt = make(tmp_path, "a")
    bolt.initialize(bolt_conf(tmp_path / "other"), STORM)
    assert bolt.writer.steps == {"parse": ""}


def bolt_conf(directory: Path) -> dict[str, Any]:
    return {"topology.name": "t", "parquet.directory": str(directory), "parquet.schema": ["word:string"]}


def test_an_enrich_bolt_checks_only_what_it_reads() -> None:
    """A rejects stream beside the one that it reads does not keep it from starting on Storm."""
    fields = {"parse": {"default": ["origin", *FLIGHT_FIELDS], "rejects": ["value"]}}
    context = {"source->stream->fields": fields, "source->stream->grouping": {"parse": {"default": {"type": "NONE"}}}}
    bolt = FlightEnrichBolt.__new__(FlightEnrichBolt)
    bolt.initialize({}, context)
    assert bolt._tables.airlines
