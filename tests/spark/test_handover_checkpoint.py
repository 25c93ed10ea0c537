"""A query's position from checkpoints of both sources: files alone. Spark's own are in test_handover_live.py."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from downspout.errors import ConfigError
from downspout.kafka import TopicPartition
from downspout.settings import ObjectPath
from downspout.sink import storage_of
from downspout.spark import read_checkpoint
from downspout.spark.checkpoint import Checkpoint
from tests.object_store_faults import options_of
from tests.sink.cloud_support import SAMPLED_SERVERS, server_of
from tests.spark.handover_support import HEAD
from tests.spark.handover_support import write_checkpoint as write

A, B, U = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
ENDS = ('{"t": {"0": 5, "1": 7}}', '{"t": {"0": 9, "1": 8}}', '{"t": {"0": 12, "1": 8}}')


def test_a_query_stands_at_the_end_of_its_last_batch(tmp_path: Path) -> None:
    assert read_checkpoint(write(tmp_path / "c", *ENDS)) == Checkpoint(
        tmp_path / "c", "6bce5c2d-8ee5-4a3a-a0c9-a8a8a8a8a8a8", 2, {A: 12, B: 8}
    )


def test_an_unfinished_batch_does_not_count(tmp_path: Path) -> None:
    """A batch that was planned and not finished is named, and the query stands at the end of the one before."""
    found = read_checkpoint(write(tmp_path / "c", *ENDS, finished=2))
    assert (found.batch, found.offsets) == (1, {A: 9, B: 8})
    assert (found.unfinished, found.planned) == (2, {A: 12, B: 8})


def test_an_unfinished_batch_may_be_unreadable(tmp_path: Path) -> None:
    """What no start depends on stops nobody: the plan of an unfinished batch may be garbled."""
    folder = write(tmp_path / "c", *ENDS, finished=2)
    (folder / "offsets" / "2").write_text("")
    found = read_checkpoint(folder)
    assert (found.offsets, found.unfinished, found.planned) == ({A: 9, B: 8}, 2, {})


def test_batches_count_by_number_and_old_ones_may_be_gone(tmp_path: Path) -> None:
    """Batch 10 comes after batch 9; Spark deletes old ones; check sums and files being written are no batches."""
    folder = write(tmp_path / "c", *[f'{{"t":{{"0":{number}}}}}' for number in range(12)], finished=11)
    for number in range(9):
        (folder / "offsets" / str(number)).unlink()
        (folder / "commits" / str(number)).unlink()
    (folder / "commits" / ".11.3f2a.tmp").write_text("v1")
    found = read_checkpoint(folder)
    assert (found.batch, found.unfinished, found.offsets) == (10, 11, {A: 10})


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        ("v1", ['{"u":{"0":3}}', '{"t":{"1":8,"0":9}}', '{"logOffset":4}', "-"]),
        ("v2", ['0:{"u":{"0":3}}', 'orders:{"t":{"1":8,"0":9}}', '2:{"logOffset":4}', "3:-"]),
    ],
)
def test_several_sources(tmp_path: Path, version: str, lines: list[str]) -> None:
    """All Kafka sources of a query count, in both forms of the log; others are counted and left out."""
    found = read_checkpoint(write(tmp_path / "c", "\n".join(lines), version=version))
    assert (found.offsets, found.others) == ({A: 9, B: 8, U: 3}, 1)


def test_one_partition_in_two_sources(tmp_path: Path) -> None:
    """Where two sources of a query read one partition, it is done as far as the slower one."""
    found = read_checkpoint(write(tmp_path / "c", '{"t":{"0":9,"1":2}}\n{"t":{"0":4,"1":6}}'))
    assert found.offsets == {A: 4, B: 2}


def test_the_start_of_the_connector_counts_before_any_batch(tmp_path: Path) -> None:
    """Spark's own source writes down where it started: with no batch finished, that is where the query stands."""
    folder = write(tmp_path / "c", ENDS[0], finished=0)
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "sources" / "0" / "0").write_bytes(b'\0v1\n{"t":{"0":2,"1":0}}')
    found = read_checkpoint(folder)
    assert (found.batch, found.offsets, found.unfinished, found.planned) == (None, {A: 2, B: 0}, 0, {A: 5, B: 7})


def test_the_connectors_own_checkpoint() -> None:
    """The checkpoint that Spark 4.0.0 with its connector left behind, whose batch 2 failed, is understood."""
    found = read_checkpoint(Path(__file__).parent / "checkpoints" / "connector-4.0.0")
    assert (found.batch, found.unfinished, found.others) == (1, 2, 0)
    assert (found.offsets, found.planned) == ({A: 33, B: 12}, {A: 37, B: 14})
    assert found.query == "dce6a61b-97a3-423e-888b-0b2e3b4747c2"


def test_the_connectors_own_start(tmp_path: Path) -> None:
    """Of that checkpoint without finished batches, the start that the connector wrote down counts."""
    folder = tmp_path / "c"
    shutil.copytree(Path(__file__).parent / "checkpoints" / "connector-4.0.0", folder)
    shutil.rmtree(folder / "commits")
    found = read_checkpoint(folder)
    assert (found.batch, found.offsets, found.unfinished) == (None, {A: 23, B: 10}, 2)


def text(path: str, content: str | bytes | None) -> Callable[[Path], None]:
    """Return what replaces a file of a checkpoint, or deletes it."""

    def damage(folder: Path) -> None:
        if content is None:
            (folder / path).unlink()
        elif isinstance(content, bytes):
            (folder / path).write_bytes(content)
        else:
            (folder / path).write_text(content)

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (text("offsets/2", None), "offsets/2 is missing, although batch 2 is finished"),
        (text("offsets/2", ""), "offsets/2 begins with '', not with v1 or v2"),
        (text("offsets/2", b"\x00\xff\xfe"), "offsets/2 is not a text file"),
        (text("offsets/2", "v1"), "offsets/2 is truncated"),
        (text("offsets/2", f"v1\n{HEAD}"), "offsets/2 names no source: the file is truncated"),
        (
            text("offsets/2", f"v3\n{HEAD}\n{ENDS[0]}"),
            "offsets/2 has format v3, of a newer Spark; known formats are v1 and v2",
        ),
        (text("offsets/2", f"v1\n{HEAD}\n{ENDS[0][:-3]}"), "offsets/2, source 0 is not JSON"),
        (text("offsets/2", f'v1\n{HEAD}\n{{"t":{{"0":-7}}}}'), "offsets/2, source 0 is not of the form"),
        (text("offsets/2", f'v1\n{HEAD}\n{{"logOffset":7}}\n17'), "offsets/2: this query has no Kafka source"),
        (text("commits/2", ""), "commits/2 begins with ''"),
        (text("metadata", "{"), "metadata: the id of the query is not JSON"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    """A missing or garbled file is an error that names it and says what to do."""
    folder = write(tmp_path / "c", *ENDS)
    damage(folder)
    with pytest.raises(ConfigError, match=re.escape(said) + r".*Try: \w+"):
        read_checkpoint(folder)


@pytest.mark.parametrize("server", SAMPLED_SERVERS)
def test_a_checkpoint_in_a_bucket_is_read_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    """By Spark's name for the bucket, with the storage that sinks use; and what is wrong with it is said as here."""
    here = [write(tmp_path / "c", *ENDS, finished=2), Path(__file__).parent / "checkpoints" / "connector-4.0.0"]
    started = write(tmp_path / "started", *ENDS, finished=0)
    (started / "sources" / "0").mkdir(parents=True)
    (started / "sources" / "0" / "0").write_text("\0v1\n" + ENDS[0])
    with server_of(server) as url:
        monkeypatch.setenv("DOWNSPOUT_PARQUET_STORAGE_OPTIONS", ",".join(options_of(url, tmp_path)))
        for folder in [*here, started]:
            there = ObjectPath(f"s3://bucket/checkpoints/{folder.name}")
            disk = storage_of(there)
            for file in (path for path in folder.rglob("*") if path.is_file()):
                disk.write(there / file.relative_to(folder), file.read_bytes())
            found = read_checkpoint(f"s3a://bucket/checkpoints/{folder.name}")
            assert found == replace(read_checkpoint(folder), directory=there)
        disk.remove(there / "sources" / "0" / "0")
        with pytest.raises(ConfigError, match="s3://bucket/checkpoints/started: no batch of this query is finished"):
            read_checkpoint(there)
        with pytest.raises(ConfigError, match="s3://bucket/none is not the checkpoint of a streaming query"):
            read_checkpoint("s3://bucket/none")


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    """A folder that is missing, another folder, and a query that has finished nothing are told apart."""
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match=r"is not the checkpoint of a streaming query"):
            read_checkpoint(folder)
    with pytest.raises(ConfigError, match=r"no batch of this query is finished.*the spout still has its own position"):
        read_checkpoint(write(tmp_path / "c", ENDS[0], finished=0))
    (tmp_path / "c" / "metadata").unlink()
    (tmp_path / "c" / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    assert read_checkpoint(tmp_path / "c").query == ""
