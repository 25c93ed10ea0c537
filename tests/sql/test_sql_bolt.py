from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pystorm.component import Tuple

from bolts.sql import SqlBolt
from downspout.errors import ConfigError, SinkError, TopologyError
from downspout.ledger import Origin
from downspout.origins import origins
from downspout.sql import sql_writer as log
from tests.sql.databases import CREATE, FIELDS, KEYED, TestDatabase, make, process, tup


def chunk(first: int, words: list[str], sizes: list[int]) -> Tuple:
    """Return a chunk, as a parser for columns would emit it."""
    columns = {
        "origin": origins("t", "id", 0, range(first, first + len(words))),
        "word": pa.array(words),
        "size": pa.array(sizes, pa.int64()),
        "day": pa.array([date(2013, 1, 31)] * len(words)),
    }
    return Tuple(f"chunk {first}", "parse", "default", 2, pa.RecordBatch.from_pydict(columns))


def test_nothing_is_acked_before_it_is_committed(database: TestDatabase) -> None:
    database.execute(CREATE)
    bolt = make(database)
    bolt.process(tup(0, "é"))
    assert (bolt.acked, database.words()) == ([], [])
    bolt.drain()
    assert (bolt.acked, database.words()) == (["0"], [("é", 1, "2013-01-31")])


def test_rows_that_are_there_are_acked_and_left_out(database: TestDatabase) -> None:
    """What a dead process has committed is not written again by the next, in whatever order and company it comes."""
    database.execute(CREATE)
    process(make(database), tup(0), tup(1, "b"), tup(3, "d"))
    bolt = make(database)
    process(bolt, tup(3, "d"), tup(2, "c"), tup(0), tup(1, "b"), tup(2, "c"))
    assert [word for word, *_ in database.words()] == ["a", "b", "c", "d"]
    assert sorted(bolt.acked) == ["0", "1", "2", "2", "3"]
    assert (bolt.report()["rows"], bolt.report()["covered"]) == (1, 4)


def test_two_tasks_write_the_same_records_once(database: TestDatabase) -> None:
    """Tasks that are open at the same time see each other's rows."""
    database.execute(CREATE)
    one, two = make(database), make(database, task_id=4)
    process(one, tup(0))
    process(two, tup(0), tup(1, "b"))
    process(one, tup(1, "b"), tup(2, "c"))
    assert [word for word, *_ in database.words()] == ["a", "b", "c"]


def test_keys_let_a_later_row_take_the_place_of_an_earlier_one(database: TestDatabase) -> None:
    database.execute(KEYED)
    bolt = make(database, sql__keys=["word"])
    process(bolt, tup(0, "a", 1), tup(1, "b", 2), tup(2, "a", 3))
    process(bolt, tup(0, "a", 1), tup(3, "b", 4))
    assert database.words() == [("a", 3, "2013-01-31"), ("b", 4, "2013-01-31")]


def test_with_keys_rows_of_all_inputs_are_written_as_they_came(database: TestDatabase) -> None:
    """In one flush too, whichever input a tuple is of, and where chunks and single tuples meet."""
    database.execute(KEYED)
    bolt = make(database, sql__keys=["word"], inputs=("parse", "check"))
    process(
        bolt, tup(0, "a", 1), tup(1, "a", 2, of="check"), tup(2, "a", 3), tup(3, "b", 4, of="check"), tup(4, "b", 5)
    )
    bolt.process(tup(5, "c", 6))
    bolt.process_chunk(chunk(6, ["c"], [7]))
    bolt.drain()
    assert [(word, size) for word, size, _ in database.words()] == [("a", 3), ("b", 5), ("c", 7)]
    assert sorted(bolt.acked) == ["0", "1", "2", "3", "4", "5", "chunk 6"]


def test_a_row_that_the_table_refuses_fails_alone(database: TestDatabase) -> None:
    """A row that no type catches and a constraint does fails with the reason; the others are written and acked."""
    database.execute(CREATE)
    bolt = make(database)
    process(bolt, *(tup(n, f"{n:02}", 5000 if n in (3, 11) else n) for n in range(20)))
    assert sorted(bolt.failed) == ["11", "3"]
    assert bolt.failed["3"].startswith("t[0]@3: sink: ")
    assert len(database.words()) == len(bolt.acked) == 18
    process(bolt, tup(3, "03", 3), tup(11, "11", 11))  # they are not taken for written
    assert len(database.words()) == 20


def test_a_row_whose_key_is_there_fails_where_rows_are_inserted(database: TestDatabase) -> None:
    """Without keys a second row of a primary key is refused, also if the first is in the same flush."""
    database.execute(KEYED)
    bolt = make(database)
    process(bolt, tup(0, "a", 1), tup(1, "b", 2), tup(2, "a", 3))
    assert list(bolt.failed) == ["2"]
    assert database.words() == [("a", 1, "2013-01-31"), ("b", 2, "2013-01-31")]


@pytest.mark.parametrize(
    ("values", "said"),
    [((None, 1, None), "null where a value is required"), (("a", "x", None), "size"), (("a", 1, "x"), "day")],
)
def test_a_value_that_does_not_fit_its_column_fails(database: TestDatabase, values: Any, said: str) -> None:
    """A value that the column's type does not take fails at once, with the column and the record named."""
    database.execute(CREATE)
    bolt = make(database)
    process(bolt, tup(0), tup(7, *values))
    assert (bolt.acked, list(bolt.failed)) == (["0"], ["7"])
    assert said in bolt.failed["7"]
    assert bolt.failed["7"].startswith("t[0]@7: sink: ")


def test_a_chunk_is_written_whole_and_acked_as_one(database: TestDatabase) -> None:
    """The rows of a chunk are written from its columns; of a replay, cut up in another way, only what is new."""
    database.execute(CREATE)
    bolt = make(database)
    bolt.process_chunk(chunk(0, ["a", "b", "c"], [1, 2, 3]))
    bolt.drain()
    assert bolt.acked == ["chunk 0"]
    bolt.process_chunk(chunk(2, ["c", "d"], [3, 4]))
    bolt.drain()
    assert [word for word, *_ in database.words()] == ["a", "b", "c", "d"]


def test_a_chunk_with_a_row_that_is_refused_fails_whole(database: TestDatabase) -> None:
    database.execute(CREATE)
    bolt = make(database)
    bolt.process_chunk(chunk(0, ["a", "b"], [1, 5000]))
    bolt.process_chunk(chunk(2, ["c", "d"], [3, 4]))
    bolt.drain()
    assert (bolt.acked, list(bolt.failed)) == (["chunk 2"], ["chunk 0"])
    assert [word for word, *_ in database.words()] == ["c", "d"]


def test_origins_are_written_where_the_table_has_columns_for_them(database: TestDatabase) -> None:
    """Columns named as those of the Parquet sink get topic, partition and offset."""
    database.execute("CREATE TABLE words (_topic TEXT, _partition INTEGER, _offset BIGINT, word TEXT)")
    process(make(database), tup(7))
    assert database.execute("SELECT * FROM words") == [("t", 0, 7, "a")]


def test_rows_without_origin_are_written_at_least_once(database: TestDatabase) -> None:
    """Rows of which nobody knows the record are written each time they come."""
    database.execute(CREATE)
    bolt = make(database, fields=FIELDS[1:])
    for _ in range(2):
        process(bolt, Tuple("x", "parse", "default", 2, ("a", 1, None)))
    assert len(database.words()) == 2


def test_two_inputs_with_one_origin_are_two_rows(database: TestDatabase) -> None:
    """Rows of one record that come through two inputs are told apart, also after a restart."""
    database.execute(CREATE)
    for _ in range(2):
        bolt = make(database, inputs=("parse", "check"))
        process(bolt, tup(0, "a"), tup(0, "b", of="check"))
    assert [word for word, *_ in database.words()] == ["a", "b"]


def test_a_table_of_another_sink_is_refused(database: TestDatabase) -> None:
    database.execute(CREATE)
    process(make(database), tup(0))
    with pytest.raises(SinkError, match="belongs to sink of topology t"):
        make(database, name="other")


def test_the_log_is_folded(database: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of many entries becomes short again, and whoever has read a part of it still knows all rows."""
    monkeypatch.setattr(log, "FOLD_BYTES", 1000)
    database.execute(CREATE)
    old, bolt = make(database), make(database, task_id=4)
    process(old, tup(1000, "old"))
    for number in range(40):
        process(bolt, tup(2 * number, f"{number:02}"))
    assert database.execute("SELECT count(*) FROM downspout_log")[0][0] < 20
    for again in (old, make(database)):
        process(again, *(tup(2 * number, f"{number:02}") for number in range(40)), tup(1000, "old"))
        assert again.report()["covered"] == 41
    assert len(database.words()) == 41


def test_a_database_that_has_lost_commits_is_noticed(database: TestDatabase) -> None:
    """A standby that took over lacks a flush: its rows are not taken for written by who remembers them."""
    database.execute(CREATE)
    bolt = make(database)
    process(bolt, tup(0))
    process(bolt, tup(1, "b"))
    process(bolt, tup(1, "b"))  # reads its own last entry
    database.execute("DELETE FROM downspout_log WHERE number = 1")
    database.execute("DELETE FROM words WHERE word = 'b'")
    bolt.process(tup(1, "b"))
    with pytest.raises(SinkError, match="entry 1 of words in downspout_log is gone"):
        bolt.drain()
    assert bolt.acked == ["0", "1", "1"]
    process(make(database), tup(0), tup(1, "b"))  # a restart reads what is there
    assert [word for word, *_ in database.words()] == ["a", "b"]


def test_another_entry_in_the_place_of_a_lost_one_is_noticed(database: TestDatabase) -> None:
    """Others have written since the standby took over: the number is there, and is of another flush."""
    database.execute(CREATE)
    bolt = make(database)
    process(bolt, tup(0))
    process(bolt, tup(0))
    database.execute("DELETE FROM downspout_log")
    database.execute("DELETE FROM words")
    process(make(database, task_id=4), tup(7, "g"))
    bolt.process(tup(0))
    with pytest.raises(SinkError, match="entry 0 of words in downspout_log is gone"):
        bolt.drain()


def test_a_log_with_a_gap_is_refused(database: TestDatabase) -> None:
    """Rows of an entry that somebody has deleted would be written twice."""
    database.execute(CREATE)
    bolt = make(database)
    for number in range(3):
        process(bolt, tup(number, f"{number}"))
    for number in (1, 0):
        database.execute(f"DELETE FROM downspout_log WHERE number = {number}")
        with pytest.raises(SinkError, match=f"entry {number} of words in downspout_log is gone"):
            make(database)


@pytest.mark.parametrize(
    ("create", "conf", "error", "said"),
    [
        (None, {}, SinkError, 'has no table words.* Try: CREATE TABLE "words"'),
        (CREATE, {"sql__keys": ["word"]}, SinkError, "(?i)unique"),
        (CREATE, {"sql__keys": ["wrod"]}, ConfigError, "no column wrod"),
        (CREATE, {"sql__schema": ["word:string", "length:int8"]}, ConfigError, "no column length"),
        (CREATE, {"sql__schema": ["size:int16"]}, SinkError, "word takes no null"),
        (CREATE, {"fields": ["origin", "word", "size"]}, TopologyError, "has no field day"),
        (CREATE, {"sql__password": "hush"}, ConfigError, "not a reference to a secret"),
    ],
)
def test_what_cannot_work_is_said_at_the_start(
    database: TestDatabase, create: str | None, conf: dict[str, Any], error: type[Exception], said: str
) -> None:
    """No table, no index for the keys, columns that are not there: an error before the first row."""
    if create:
        database.execute(create)
    with pytest.raises(error, match=said):
        make(database, **conf)


def test_the_statement_that_is_shown_makes_the_table(database: TestDatabase) -> None:
    """Also where names are words of SQL, or have capitals."""
    conf: dict[str, Any] = {
        "sql__table": "Order",
        "sql__schema": ["word:string!", "group:int16"],
        "fields": ["origin", "word", "group"],
    }
    with pytest.raises(SinkError, match="has no table Order") as raised:
        make(database, **conf)
    assert raised.value.cure is not None
    database.execute(raised.value.cure)
    process(make(database, **conf), Tuple("0", "parse", "default", 2, (Origin("t", "id", 0, 0), "a", 1)))
    assert database.execute('SELECT word, "group" FROM "Order"') == [("a", 1)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"database": "mysql://x/y", "table": "t"}, "does not name a database"),
        ({"database": "postgresql://me:hush@x/y", "table": "t"}, "holds a password"),
        ({"database": "sqlite:///x.db", "table": "a..b"}, "does not name a table"),
        ({"database": "sqlite:///x.db", "table": "t", "schema": {"a": "list<int8>"}, "keys": ["b"]}, "no column b"),
        ({"database": "sqlite:///x.db", "tabel": "t"}, "sql.table"),
    ],
)
def test_a_spec_is_checked(given: dict[str, Any], said: str) -> None:
    """What is wrong by itself is an error where the topology is written."""
    with pytest.raises(ConfigError, match=said) as raised:
        SqlBolt.spec(**given)
    assert "hush" not in str(raised.value)
