"""SqlBolt in the stages of a topology on Spark, run in process: rows are in the table once, whatever is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamparse import Grouping

from bolts.sql import SqlBolt
from downspout.errors import TopologyError
from downspout.testing import FakeKafka
from tests.spark import topology_bolts as b
from tests.spark.topology_support import InProcess, failure_of, rows_in, send
from tests.sql.databases import TestDatabase, sqlite_database

pytestmark = pytest.mark.fake_only("what a batch is, and when one is repeated, does not depend on the broker")


@pytest.fixture
def database(tmp_path: Path) -> TestDatabase:
    database = sqlite_database(tmp_path)
    database.execute("CREATE TABLE words (word TEXT NOT NULL CHECK (word <> 'rude'))")
    return database


def words_to(database: TestDatabase, out: Path, *, grouping: Any = Grouping.SHUFFLE, **spout: Any) -> Any:
    """Return a topology that writes words into the table, and to files."""
    lines = b.lines(**spout)
    split = b.Harmless.spec(inputs=[lines])
    store = SqlBolt.spec(inputs={split: grouping}, database=database.url, table="words")
    return b.graph_of(spout=lines, split=split, store=store, words=b.sink([split], out / "words", b.WORD))


def words(database: TestDatabase) -> list[str]:
    return [word for (word,) in database.execute("SELECT word FROM words ORDER BY word")]


@pytest.mark.parametrize("emit", ["record", "chunk"])
@pytest.mark.parametrize("grouping", [Grouping.SHUFFLE, Grouping.fields("word")])
def test_a_batch_ends_when_its_rows_are_committed(
    kafka: FakeKafka, database: TestDatabase, tmp_path: Path, emit: str, grouping: Any
) -> None:
    """The table has the rows of the files, each once; the bolt is never stateful."""
    query = InProcess(words_to(database, tmp_path, grouping=grouping), kafka, {"kafka.emit": emit})
    assert query.plan.stateful == {}
    send(kafka, "a b", "c", "a")
    query.run()
    send(kafka, "d")
    query.run()
    assert words(database) == rows_in(tmp_path / "words", "word") == ["a", "a", "b", "c", "d"]
    assert query.batches.totals.counts["store"].failed == 0


def test_a_batch_that_is_repeated_finds_its_rows(kafka: FakeKafka, database: TestDatabase, tmp_path: Path) -> None:
    """Where a query begins anew with the same records, nothing is written again."""
    send(kafka, "a b", "c")
    for out in ("one", "two"):
        InProcess(words_to(database, tmp_path / out), kafka).run()
        assert words(database) == rows_in(tmp_path / out / "words", "word") == ["a", "b", "c"]


def test_a_row_that_the_table_refuses_is_dead_lettered(
    kafka: FakeKafka, database: TestDatabase, tmp_path: Path
) -> None:
    query = InProcess(words_to(database, tmp_path), kafka)
    send(kafka, "a b", "rude", "d")
    query.run()
    assert words(database) == ["a", "b", "d"]
    (letter,) = query.letters()
    assert letter.value == b"rude"
    assert "store: " in failure_of(letter)


def test_an_offset_store_is_refused(kafka: FakeKafka, database: TestDatabase, tmp_path: Path) -> None:
    """The offsets of a query are in Spark's checkpoint, and the error says so."""
    with pytest.raises(TopologyError, match=r"has a kafka\.offset_store, and the offsets .* in Spark's checkpoint"):
        InProcess(words_to(database, tmp_path, offset_store="sqlite:///x.db"), kafka)
