"""States on a real Spark: micro-batches are applied once, whatever Spark remembers of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downspout.batches import read_state
from downspout.errors import ConfigError
from downspout.spark.state_writer import state_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
LINES = ["to be or not to be", "that is the question", "to be"]


def longest(value: str | None, row: Any) -> str:
    """Keep the longest line: a reducer, which Spark's tasks cannot fold."""
    return max(value or "", str(row.line), key=len)


def count(spark: SparkSession, folder: Path, checkpoint: str = "checkpoint", **settings: Any) -> None:
    """Let a query count the words of the lines in a folder, a file a batch, to the end."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "lines"))
    frame = lines.selectExpr("explode(split(value, ' ')) AS word", "value AS line")
    given = {"store": f"sqlite:///{folder}/counts.db", "name": "counts", "key": "word", "update": "count", **settings}
    query = frame.writeStream.foreachBatch(state_writer(**given)).option("checkpointLocation", f"{folder}/{checkpoint}")
    query.trigger(availableNow=True).start().awaitTermination()


def write(folder: Path, number: int, line: str) -> None:
    (folder / "lines").mkdir(exist_ok=True)
    (folder / "lines" / f"{number}.txt").write_text(f"{line}\n{line}\n")


def counts(folder: Path) -> dict[str, int]:
    return {key[0]: value for key, value in read_state(f"sqlite:///{folder}/counts.db", "counts").items()}


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_batch_that_comes_again_counts_once(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Where Spark was stopped after a batch was applied and before it wrote that down, the batch is left out."""
    for number, line in enumerate(LINES[:2]):
        write(tmp_path, number, line)
    count(spark, tmp_path, kind=kind)
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) == 2
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    write(tmp_path, 2, LINES[2])
    count(spark, tmp_path, kind=kind)
    assert counts(tmp_path) == Counter(word for line in LINES * 2 for word in line.split())


def test_another_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Numbers of batches begin anew with a checkpoint: its batches would be left out, so they are an error."""
    write(tmp_path, 0, LINES[0])
    count(spark, tmp_path)
    with pytest.raises(Exception, match="state counts belongs to the batches of query"):
        count(spark, tmp_path, "another")
    assert counts(tmp_path)["to"] == 4


def test_a_reducer_gets_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A function of the user's is given each row of a key."""
    write(tmp_path, 0, LINES[0])
    write(tmp_path, 1, LINES[2])
    count(spark, tmp_path, update=longest)
    assert counts(tmp_path)["be"] == LINES[0]


def test_a_state_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"state\.name is not set"):
        state_writer(store="sqlite:///counts.db", key="word", update="count")


def test_a_kind_that_is_not_exactly_once_is_refused() -> None:
    """Where Spark runs a micro-batch again, it would be applied again; that has to be allowed."""
    given = {"store": "sqlite:///counts.db", "name": "counts", "key": "word", "update": "count"}
    with pytest.raises(ConfigError, match=r"state\.kind = non_transactional is not exactly once"):
        state_writer(**given, kind="non_transactional")
    assert state_writer(**given, kind="non_transactional", exactly_once=False)
