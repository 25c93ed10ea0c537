"""ParquetBolt and AggregateBolt, driven directly."""

from __future__ import annotations

import errno
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pystorm.component import Tuple

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.errors import ConfigError, SinkError, TopologyError
from downspout.ledger import Origin
from downspout.sink import HIDDEN, Disk
from downspout.testing import VirtualClock

FIELDS = ["origin", "word", "size", "day"]
SCHEMA = ["word:string!", "size:int16", "day:date"]


def make(
    cls: Any,
    directory: Path,
    *,
    fields: Any = FIELDS,
    inputs: Any = ("parse",),
    disk: Any = None,
    **conf: Any,
) -> Any:
    """Return a sink as an engine would build it, with acks and fails collected."""
    bolt = cls(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    bolt.clock = VirtualClock()
    bolt.component_name, bolt.task_id = "sink", 3
    bolt.acked, bolt.failed = [], {}
    bolt.ack = lambda given: bolt.acked.append(getattr(given, "id", given))
    bolt.fail_because = lambda tup, error: bolt.failed.__setitem__(getattr(tup, "id", tup), str(error))
    if disk is not None:
        bolt.disk = disk
    settings = {"topology.name": "t", "parquet.directory": str(directory), "parquet.schema": SCHEMA, **conf}
    bolt.initialize(settings, {"source->stream->fields": {name: {"default": fields} for name in inputs}})
    return bolt


def tup(offset: int, word: Any = "a", size: Any = 1, day: Any = "2013-01-31", path: str = "") -> Tuple:
    """Return a tuple as the parse bolt would emit it."""
    values = (Origin("t", "id", 0, offset, path), word, size, day)
    return Tuple(f"{offset}{path}", "parse", "default", 2, values)


def rows(directory: Path) -> list[dict[str, Any]]:
    files = [str(f) for f in directory.rglob("*.parquet") if "_downspout" not in f.parts]
    return ds.dataset(files, partitioning=None).to_table().sort_by("_offset").to_pylist() if files else []


def test_nothing_is_acked_before_it_is_durable(tmp_path: Path) -> None:
    """A tuple is acked by the flush that makes its row visible, and not before."""
    bolt = make(ParquetBolt, tmp_path)
    bolt.process(tup(0))
    assert (bolt.acked, rows(tmp_path)) == ([], [])
    bolt.drain()
    assert bolt.acked == ["0"]
    assert [row["_offset"] for row in rows(tmp_path)] == [0]


def test_rows_carry_their_origin(tmp_path: Path) -> None:
    """Each row has its origin columns beside the declared ones."""
    bolt = make(ParquetBolt, tmp_path)
    bolt.process(tup(7, path="split.2"))
    bolt.drain()
    (row,) = rows(tmp_path)
    origin = [row[name] for name in ("_topic", "_topic_id", "_partition", "_offset", "_path")]
    assert origin == ["t", "id", 0, 7, "split.2"]
    assert (row["word"], row["size"], str(row["day"])) == ("a", 1, "2013-01-31")


def test_a_replay_that_reaches_another_task_is_dropped_and_acked(tmp_path: Path) -> None:
    """A row that any writer committed is acked and not written again, whichever task it is replayed to."""
    first, second = make(ParquetBolt, tmp_path), make(ParquetBolt, tmp_path)
    for offset in range(3):
        first.process(tup(offset))
    first.drain()
    for offset in range(5):
        second.process(tup(offset))
    second.process(tup(4))  # and twice within one flush
    second.drain()
    assert [row["_offset"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4]
    assert sorted(second.acked) == ["0", "1", "2", "3", "4", "4"]
    assert second.report()["covered"] == 4


def test_rows_that_do_not_fit_fail_alone_with_the_field_named(tmp_path: Path) -> None:
    """Among good rows a bad one fails with its field and value; the good ones are written and acked."""
    bolt = make(ParquetBolt, tmp_path)
    bad = [tup(1, word=None), tup(3, size=99_999), tup(5, day="soon"), tup(6, size="x"), tup(7, word=5)]
    for one in [tup(0), bad[0], tup(2), bad[1], tup(4), *bad[2:]]:
        bolt.process(one)
    bolt.drain()
    assert [row["_offset"] for row in rows(tmp_path)] == [0, 2, 4]
    assert bolt.acked == ["0", "2", "4"]
    assert set(bolt.failed) == {"1", "3", "5", "6", "7"}
    assert "size = 99999" in bolt.failed["3"]
    assert "day = 'soon'" in bolt.failed["5"]
    assert bolt.report()["rejected"] == 5


def test_a_tuple_with_a_broken_origin_fails_alone(tmp_path: Path) -> None:
    """A row whose origin is none is rejected, whatever else is wrong in the flush."""
    bolt = make(ParquetBolt, tmp_path)
    bolt.process(Tuple("x", "parse", "default", 2, (None, "a", 1, None)))
    bolt.process(tup(1, size="x"))
    bolt.process(tup(2))
    bolt.drain()
    assert (bolt.acked, sorted(bolt.failed)) == (["2"], ["1", "x"])
    assert "size" in bolt.failed["1"]


def test_flushes_by_rows(tmp_path: Path) -> None:
    bolt = make(ParquetBolt, tmp_path, **{"parquet.flush_rows": 10})
    for offset in range(25):
        bolt.process(tup(offset))
    assert len(rows(tmp_path)) == 20


def test_flushes_by_bytes(tmp_path: Path) -> None:
    """So many bytes cause a flush long before the rows do."""
    bolt = make(ParquetBolt, tmp_path, **{"parquet.flush_bytes": 100_000})
    for offset in range(128):
        bolt.process(tup(offset, word="x" * 1_000))
    assert 80 <= len(rows(tmp_path)) <= 128


def test_flushes_by_age(tmp_path: Path) -> None:
    """Rows that grow old are flushed by a tick."""
    bolt = make(ParquetBolt, tmp_path)
    tick = Tuple("tick", "__system", "__tick", -1, (1,))
    bolt.process(tup(0))
    for _ in range(8):
        bolt.process_tick(tick)
        bolt.clock.advance(1.0)
    assert rows(tmp_path) == []
    bolt.process_tick(tick)
    assert len(rows(tmp_path)) == 1


def test_hive_folders_hold_whatever_the_data_says(tmp_path: Path) -> None:
    """Values that look like paths stay inside the directory and read back as they were."""
    bolt = make(ParquetBolt, tmp_path / "out", **{"parquet.partition_by": ["word"]})
    words = ["../../evil", "a/b", "a=b", "%2F", "nul\x00", "ü", "", "."]
    for offset, word in enumerate(words):
        bolt.process(tup(offset, word=word))
    bolt.drain()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(list((tmp_path / "out").glob("word=*/*.parquet"))) == len(words)


def test_a_value_too_long_for_a_folder_is_rejected(tmp_path: Path) -> None:
    """A partition value that no file system takes fails its own row, and no other."""
    bolt = make(ParquetBolt, tmp_path, **{"parquet.partition_by": ["word"]})
    bolt.process(tup(0, word="x" * 300))
    bolt.process(tup(1))
    bolt.drain()
    assert (bolt.acked, list(bolt.failed)) == (["1"], ["0"])
    assert "word" in bolt.failed["0"]


class FullDisk(Disk):
    def write(self, path: Path, content: bytes) -> None:
        if path.suffix == HIDDEN:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().write(path, content)


def test_a_full_disk_acks_nothing_and_leaves_nothing_visible(tmp_path: Path) -> None:
    """A flush that hits a full disk waits, acks nothing, and nothing half-written is in sight."""
    bolt = make(ParquetBolt, tmp_path, disk=FullDisk())
    bolt.process(tup(0))
    bolt.drain()
    assert (bolt.is_waiting(), bolt.acked, rows(tmp_path)) == (True, [], [])
    again = make(ParquetBolt, tmp_path)
    again.process(tup(0))
    again.drain()
    assert len(rows(tmp_path)) == 1


@pytest.mark.parametrize(("place", "cure"), [("x" * 300, "a shorter parquet.directory"), ("file/in", "move it away")])
def test_a_directory_that_cannot_be_made_says_why(tmp_path: Path, place: str, cure: str) -> None:
    """The cure fits what is wrong with the directory: nobody frees a disk for a name that is too long."""
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match=cure):
        make(ParquetBolt, tmp_path / place)


def test_a_directory_belongs_to_one_topology_and_one_schema(tmp_path: Path) -> None:
    """Another topology, or other columns, are refused before anything is written."""
    bolt = make(ParquetBolt, tmp_path)
    bolt.process(tup(0))
    bolt.drain()
    with pytest.raises(SinkError, match="belongs to topology t, not to other"):
        make(ParquetBolt, tmp_path, **{"topology.name": "other"})
    with pytest.raises(SinkError, match="has the columns"):
        make(ParquetBolt, tmp_path, **{"parquet.schema": ["word:string"]})


def test_a_field_that_the_input_lacks_is_named(tmp_path: Path) -> None:
    """A schema with a column that no field fills is an error at the start."""
    with pytest.raises(TopologyError, match="no field day"):
        make(ParquetBolt, tmp_path, fields=["origin", "word", "size"])


def test_spec_refuses_a_bad_schema() -> None:
    """Types that Spark cannot read, and settings that do not fit, are refused when the topology is built."""
    with pytest.raises(ConfigError, match="no type float16"):
        ParquetBolt.spec(directory="x", schema={"a": "float16"})
    with pytest.raises(ConfigError, match="no column nope"):
        ParquetBolt.spec(directory="x", schema={"a": "string", "b": "string"}, partition_by=["nope"])
    with pytest.raises(ConfigError, match="cannot be added up"):
        AggregateBolt.spec(directory="x", schema={"a": "string"}, keys=["a"], aggregates=["sum:a"])


def test_aggregates_add_up_each_row_once_whoever_gets_the_replay(tmp_path: Path) -> None:
    """Finished counts are exact although rows are replayed to another task and within a flush."""
    conf = {"parquet.keys": ["word"], "parquet.aggregates": ["count", "sum:size", "max:size"]}
    first, second = make(AggregateBolt, tmp_path, **conf), make(AggregateBolt, tmp_path, **conf)
    words = ["a", "b", "a", "c", "a", "b"]
    for offset, word in enumerate(words[:4]):
        first.process(tup(offset, word=word, size=offset))
    first.drain()
    for offset, word in enumerate(words):
        second.process(tup(offset, word=word, size=offset))
        second.process(tup(offset, word=word, size=offset))
    second.drain()
    table = ds.dataset([str(f) for f in tmp_path.glob("*.parquet")]).to_table().to_pylist()
    counts: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for row in table:
        counts[row["word"]] += row["count"]
        sums[row["word"]] += row["sum_size"]
    assert counts == Counter(words)
    assert sums == {"a": 6, "b": 6, "c": 3}


def test_aggregates_may_have_folders_of_keys_only(tmp_path: Path) -> None:
    schema = {"word": "string", "size": "int16"}
    AggregateBolt.spec(directory="x", schema=schema, keys=["word"], aggregates=["count"], partition_by=["word"])
    with pytest.raises(ConfigError, match="no column size"):
        AggregateBolt.spec(directory="x", schema=schema, keys=["word"], aggregates=["count"], partition_by=["size"])


@pytest.mark.parametrize(
    ("keys", "aggregates"),
    [(["count"], ["count"]), (["sum_x"], ["sum:x"]), (["x"], ["count", "count"]), (["x", "x"], ["count"])],
)
def test_two_columns_of_one_name_are_refused(keys: list[str], aggregates: list[str]) -> None:
    """A key named like an aggregate's column, and a key or aggregate given twice, are errors of the configuration."""
    schema = {"count": "int64", "sum_x": "int64", "x": "int64"}
    with pytest.raises(ConfigError, match="would be one column"):
        AggregateBolt.spec(directory="x", schema=schema, keys=keys, aggregates=aggregates)


def test_two_different_rows_with_one_identity_are_not_one_row(tmp_path: Path) -> None:
    """Of two rows that differ but claim one identity in a flush, the second fails by name; an equal one is a replay."""
    bolt = make(ParquetBolt, tmp_path)
    for offset in range(3):
        bolt.process(tup(offset, word="debit"))
    bolt.process(Tuple("other", "parse", "default", 2, tup(1, word="credit").values))
    bolt.process(Tuple("replay", "parse", "default", 2, tup(2, word="debit").values))
    bolt.drain()
    assert [(row["_offset"], row["word"]) for row in rows(tmp_path)] == [(0, "debit"), (1, "debit"), (2, "debit")]
    assert sorted(bolt.acked) == ["0", "1", "2", "replay"]
    assert "t[0]@1: " in bolt.failed["other"]
    assert "same identity" in bolt.failed["other"]
    assert "origin.child" in bolt.failed["other"]


def test_a_spec_keeps_the_configuration_that_it_is_given() -> None:
    """Storm's settings for the component, and ours by their whole names, stand beside the arguments."""
    config = {"topology.tick.tuple.freq.secs": 5, "parquet.flush_rows": 7}
    spec = ParquetBolt.spec(directory="out", schema={"word": "string"}, config=config)
    assert json.loads(spec.config) == {**config, "parquet.directory": "out", "parquet.schema": ["word:string"]}
