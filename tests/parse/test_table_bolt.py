"""A custom bolt with a function from a table to a table, for each library."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streamparse import Stream, Topology

from bolts.parquet import ParquetBolt
from bolts.table import FRAMES, TableBolt
from downspout.errors import ConfigError, MissingExtraError, TopologyError
from downspout.ledger import Origin
from downspout.origins import each
from downspout.parse import REJECT_FIELDS, ChunkBolt
from downspout.sink import read_table
from downspout.testing import run_bolt, run_topology
from tests.parse.support import chunk, run_chunks
from tests.parse.test_parse_bolt import Source
from tests.sampling import examples

WORDS = ["a", "bbbb", None, "cc", "long", "ddd"]


class Words(TableBolt):
    """Emits the lengths of words of fewer than four letters, the longest first."""

    outputs: ClassVar[list[str]] = ["origin", "value", "letters"]


class ArrowWords(Words):
    def process_table(self, words: pa.Table) -> Any:
        found = words.append_column("letters", pc.utf8_length(words.column("value")).cast(pa.int8()))
        return found.filter(pc.field("letters") < 4).sort_by([("letters", "descending")])


class PandasWords(Words):
    frame = "pandas"

    def process_table(self, words: pd.DataFrame) -> Any:
        words["letters"] = words["value"].str.len().astype("int8[pyarrow]")
        return words[words["letters"] < 4].sort_values("letters", ascending=False)


class PolarsWords(Words):
    frame = "polars"

    def process_table(self, words: Any) -> Any:
        letters = pl.col("value").str.len_chars().cast(pl.Int8).alias("letters")
        return words.lazy().with_columns(letters).filter(pl.col("letters") < 4).sort("letters", descending=True)


BOLTS = [ArrowWords, PandasWords, PolarsWords]


def found_in(batches: Sequence[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Return the rows of batches, with offsets and paths for origins."""
    return [
        (origin.offset, origin.path, *list(row.values())[1:])
        for batch in batches
        for origin, row in zip(each(batch.column("origin")), batch.to_pylist(), strict=True)
    ]


@pytest.mark.parametrize("bolt", BOLTS)
def test_each_library_gives_the_same_rows_with_their_origins(bolt: type[Words]) -> None:
    """Filtered and sorted rows keep the origins of their records, and columns have the types that sinks know."""
    (made,) = run_chunks(bolt.spec(), [chunk(WORDS, kind=pa.string())]).emitted("bolt")
    assert found_in([made]) == [(5, "", "ddd", 3), (3, "", "cc", 2), (0, "", "a", 1)]
    assert made.schema.field("value").type == pa.string()
    assert made.schema.field("letters").type == pa.int8()


@pytest.mark.parametrize("bolt", BOLTS)
def test_a_record_is_a_table_of_one_row(bolt: type[Words]) -> None:
    tuples = [{"origin": Origin("orders", "id", 2, place), "value": word} for place, word in enumerate(WORDS) if word]
    records = run_bolt(bolt.spec(), tuples).emitted("bolt")
    assert [(found.origin.offset, found.value, found.letters) for found in records] == [
        (0, "a", 1), (3, "cc", 2), (5, "ddd", 3),
    ]  # fmt: skip


class Letters(TableBolt):
    """Makes of each word its letters: of some none, of some one, of some many."""

    outputs: ClassVar[list[str]] = ["origin", "value"]
    frame = "polars"

    def process_table(self, words: Any) -> Any:
        letters = words.with_columns(pl.col("value").str.extract_all("[^ ]"))
        return letters.filter(pl.col("value").list.len() > 0).explode("value")


@given(words=st.lists(st.text("ab ", max_size=4), min_size=1, max_size=8), cut=st.integers(0, 8))
@settings(max_examples=examples(60), deadline=None)
def test_several_rows_of_a_record_have_origins_that_do_not_depend_on_the_chunk(words: list[str], cut: int) -> None:
    """However a chunk is cut when it comes again, its rows have the same identities, and no two have the same."""
    whole = chunk(words, kind=pa.string())
    parts = [part for part in (whole.slice(0, cut), whole.slice(cut)) if part.num_rows]
    once = found_in(run_chunks(Letters.spec(), [whole]).emitted("bolt"))
    again = found_in(run_chunks(Letters.spec(), parts).emitted("bolt"))
    assert once == again
    expected = []
    for place, word in enumerate(words):
        letters = [letter for letter in word if letter != " "]
        paths = [""] if len(letters) == 1 else [f"bolt.{index}" for index in range(len(letters))]
        expected += [(place, path, letter) for path, letter in zip(paths, letters, strict=True)]
    assert once == expected


class Pass(TableBolt):
    outputs: ClassVar[list[str]] = ["origin", "value"]
    result: ClassVar[Any] = None

    def process_table(self, table: pa.Table) -> Any:
        return type(self).result(table)


ODD = [
    pytest.param(lambda table: table.select(["value"]), "has no column origin; it has value", id="no origin"),
    pytest.param(lambda table: table.drop_columns(["value"]), "has no column value; it has origin, key", id="no value"),
    pytest.param(
        lambda table: table.set_column(0, "origin", pa.array([9] * len(table))), "has not the numbers", id="9"
    ),
    pytest.param(
        lambda table: table.set_column(0, "origin", pa.nulls(len(table), pa.int64())), "has not the numbers", id="nulls"
    ),
    pytest.param(lambda table: table.set_column(0, "origin", table.column("value")), "has not the numbers", id="texts"),
    pytest.param(lambda table: 7, "bolt: process_table returned int, which is no table", id="a number"),
    pytest.param(lambda table: None, "bolt: process_table returned NoneType, which is no table", id="no return"),
]


@pytest.mark.parametrize(("result", "said"), ODD)
def test_what_is_no_table_of_the_outputs_is_named(result: Any, said: str) -> None:
    """A missing column, changed numbers and things that are no tables end the run with an error that says which."""
    bolt = type("Odd", (Pass,), {"result": staticmethod(result)})
    with pytest.raises(TopologyError, match=said):
        run_chunks(bolt.spec(), [chunk(["a"], kind=pa.string())])


@pytest.mark.parametrize("result", [lambda table: table.slice(0, 0), lambda table: pd.DataFrame([])])
def test_nothing_is_emitted_where_there_are_no_rows(result: Any) -> None:
    """A table without rows, whatever its columns, acks the chunk and emits nothing."""
    bolt = type("Nothing", (Pass,), {"result": staticmethod(result)})
    outcome = run_chunks(bolt.spec(), [chunk(["a"], kind=pa.string())])
    assert not outcome.emitted("bolt")
    assert not outcome.errors


def test_an_unknown_library_or_one_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong ``frame`` is an error with the known ones; a missing library one with what to install."""
    with pytest.raises(ConfigError, match=r"frame = 'panda' is unknown.*pyarrow, pandas, polars"):
        type("Odd", (Pass,), {"frame": "panda"}).spec()
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingExtraError, match=r"frame is polars, which is not installed.*pip install polars"):
        run_chunks(Letters.spec(), [chunk(["a"], kind=pa.string())])
    assert set(FRAMES) == {"pyarrow", "pandas", "polars"}


@pytest.mark.parametrize(("attributes", "said"), [
    ({}, "has no process_table, so it would emit nothing"),
    ({"process_tables": lambda self, table: table}, "has no process_table"),
    ({"process_table": lambda table: table}, "cannot be called with one argument"),
], ids=["none", "another name", "no self"])  # fmt: skip
def test_a_bolt_without_its_function_is_refused_before_a_run(attributes: dict[str, Any], said: str) -> None:
    """A class that lacks ``process_table``, or has it with other arguments, cannot be put into a topology."""
    with pytest.raises(ConfigError, match=said):
        type("Odd", (TableBolt,), {"outputs": ["origin"], **attributes}).spec()
    with pytest.raises(ConfigError, match="has no process_chunk"):
        type("Odd", (ChunkBolt,), {"outputs": ["origin"]}).spec()


class Mixed(TableBolt):
    """Makes a column that Arrow has no type for of one value."""

    outputs: ClassVar[list[str]] = ["origin", "value"]
    frame = "pandas"

    def process_table(self, words: pd.DataFrame) -> Any:
        words["value"] = [{"odd": 1} if word == "?" else str(word) for word in words["value"]]  # type: ignore[assignment]
        return words


def test_values_that_no_column_can_hold_are_an_error_of_their_record() -> None:
    """A column of mixed objects fails the chunk, which is halved; all other records get through."""
    outcome = run_chunks(Mixed.spec(), [chunk(["a", "?", "b", "c"], kind=pa.string())])
    assert sorted(row[0] for row in found_in(outcome.emitted("bolt")) if row[0] != 1) == [0, 2, 3]


def test_a_null_has_the_type_of_the_values_before_it() -> None:
    """In record mode a null's column is of the type that the field had last, so that a function can go on with it."""
    tuples = [{"origin": Origin("orders", "id", 2, place), "value": word} for place, word in enumerate(["a", None])]
    result = run_bolt(ArrowWords.spec(), tuples)
    assert (result.counts("bolt").acked, result.errors) == (2, [])


class OwnBeginning(ArrowWords):
    """Has an ``initialize`` that does not call its base's, as bolts of streamparse need not."""

    def initialize(self, storm_conf: Any, context: Any) -> None:
        pass


def test_an_initialize_need_not_call_its_base() -> None:
    (made,) = run_chunks(OwnBeginning.spec(), [chunk(WORDS, kind=pa.string())]).emitted("bolt")
    assert made.num_rows == 3


class Picky(TableBolt):
    outputs: ClassVar[list[Stream]] = [
        Stream(fields=["origin", "value"]),
        Stream(fields=list(REJECT_FIELDS), name="rejects"),
    ]
    frame = "pandas"

    def process_table(self, words: pd.DataFrame) -> Any:
        is_question = words["value"] == "?"
        self.reject_rows(words[is_question], "a question")
        return words[~is_question]


def test_rejected_rows_leave_with_their_records() -> None:
    outcome = run_chunks(Picky.spec(), [chunk(["a", "?", "b"], kind=pa.string())], rejects=True)
    assert [row[0] for row in found_in(outcome.emitted("bolt"))] == [0, 2]
    (aside,) = outcome.emitted("bolt", "rejects")
    assert aside.column("error").to_pylist()[0].startswith("RecordError: orders[2]@1: bolt: a question")
    assert aside.column("value").to_pylist() == ["?"]


class Careless(Picky):
    """Rejects questions twice, and returns them all the same."""

    def process_table(self, words: pd.DataFrame) -> Any:
        for _ in range(2):
            self.reject_rows(words[words["value"] == "?"], "a question")
        return words


def test_a_rejected_record_has_one_letter_and_no_row() -> None:
    outcome = run_chunks(Careless.spec(), [chunk(["a", "?", "b"], kind=pa.string())], rejects=True)
    assert [row[0] for row in found_in(outcome.emitted("bolt"))] == [0, 2]
    assert [batch.num_rows for batch in outcome.emitted("bolt", "rejects")] == [1]


SHAPES: dict[str, pl.Expr] = {
    "text": pl.col("value"),
    "bytes": pl.col("value").cast(pl.Binary),
    "list": pl.concat_list(pl.col("value")),
    "struct": pl.struct(pl.col("value")),
    "category": pl.col("value").cast(pl.Categorical),
}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_rejected_rows_leave_a_polars_frame_of_any_type(shape: str) -> None:
    """Polars' variants of texts become ordinary ones before rejected rows are taken out, within other types as well."""

    class PolarsPicky(Picky):
        frame = "polars"

        def process_table(self, words: Any) -> Any:
            self.reject_rows(words.filter(pl.col("value") == "?"), "a question")
            return words.filter(pl.col("value") != "!").with_columns(SHAPES[shape], unread=pl.col("value"))

    outcome = run_chunks(PolarsPicky.spec(), [chunk(["a", "?", "!", "b"], kind=pa.string())], rejects=True)
    (made,) = outcome.emitted("bolt")
    assert [row[0] for row in found_in([made])] == [0, 3]
    assert not any(word in str(made.schema.field("value").type) for word in ("view", "dictionary"))
    (aside,) = outcome.emitted("bolt", "rejects")
    assert aside.column("value").to_pylist() == ["?"]


def test_rejected_rows_leave_a_table_that_the_function_took_from_polars() -> None:
    """A frame that the function itself made a pyarrow table of is treated like the frame."""

    class Handed(Picky):
        frame = "polars"

        def process_table(self, words: Any) -> Any:
            self.reject_rows(words.filter(pl.col("value") == "?"), "a question")
            return words.to_arrow(compat_level=pl.CompatLevel.newest())

    (made,) = run_chunks(Handed.spec(), [chunk(["a", "?", "b"], kind=pa.string())], rejects=True).emitted("bolt")
    assert [row[0] for row in found_in([made])] == [0, 2]


NO_ROWS = [
    pytest.param(lambda words: words["value"] == "?", "reject_rows was given Series", id="a mask"),
    pytest.param(lambda words: [0], "reject_rows was given list", id="a list"),
    pytest.param(lambda words: words[["value"]], "reject_rows was given has not the numbers", id="no origin"),
]


@pytest.mark.parametrize(("rows", "said"), NO_ROWS)
def test_what_is_no_rows_to_reject_is_named(rows: Any, said: str) -> None:
    """A mask, numbers, rows without origin: the error names the bolt, the method and how rows are given."""

    def process_table(self: Any, words: Any) -> Any:
        self.reject_rows(rows(words), "a question")
        return words

    bolt = type("Odd", (Picky,), {"process_table": process_table})
    with pytest.raises(TopologyError, match=said):
        run_chunks(bolt.spec(), [chunk(["?"], kind=pa.string())], rejects=True)


class Doubtful(TableBolt):
    outputs: ClassVar[list[str]] = ["origin", "value"]

    def process_table(self, words: pa.Table) -> Any:
        if "?" in words.column("value").to_pylist():
            raise ValueError("a question")
        return words


def test_the_row_that_raises_is_found_by_halves() -> None:
    """A chunk that a function raises on comes in halves, until the culprit stands alone; the rest gets through."""
    words = [str(number) for number in range(8)]
    words[5] = "?"
    outcome = run_chunks(Doubtful.spec(), [chunk(words, kind=pa.string())])
    assert sorted(row[0] for row in found_in(outcome.emitted("bolt"))) == [0, 1, 2, 3, 4, 6, 7]


class Counted(TableBolt):
    """Counts whole numbers, some of which are null, beside a list of texts."""

    outputs: ClassVar[list[str]] = ["origin", "n", "tags"]
    frame = "pandas"

    def process_table(self, rows: pd.DataFrame) -> Any:
        rows["n"] = rows["n"] + 1
        return rows


@pytest.mark.parametrize("frame", list(FRAMES))
def test_a_sink_takes_what_comes_of_each_library(frame: str, tmp_path: Path) -> None:
    """Whole numbers with nulls stay whole, and lists and texts keep their types, into the files of a sink."""

    def plus_one(self: Any, rows: Any) -> Any:
        if frame == "pyarrow":
            return rows.set_column(1, "n", pc.add(rows.column("n"), 1))
        if frame == "polars":
            return rows.with_columns(n=pl.col("n") + 1)
        rows["n"] = rows["n"] + 1
        return rows

    counting = type("Counting", (Counted,), {"frame": frame, "process_table": plus_one})

    class Rows(Source):
        outputs = ["origin", "n", "tags"]  # noqa: RUF012 - streamparse wants a plain class attribute

    class Numbers(Topology):
        source = Rows.spec()
        bolt = counting.spec(inputs=[source])
        out = ParquetBolt.spec(
            inputs=[bolt], directory=str(tmp_path / "out"), schema={"n": "int64", "tags": "list<string>"}
        )

    places = [Origin("orders", "id", 2, number) for number in range(2)]
    run_topology(Numbers, spouts={"source": [[places[0], 2**60, ["a", "b"]], [places[1], 7, []]]})
    rows = sorted(read_table(tmp_path / "out").select(["n", "tags"]).to_pylist(), key=lambda row: row["n"])
    assert rows == [{"n": 8, "tags": []}, {"n": 2**60 + 1, "tags": ["a", "b"]}]
