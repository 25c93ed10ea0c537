"""Values from data that name folders, as PySpark reads them; the sink's side is in ``tests/security``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.security.test_partition_values import NASTY, is_writable, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.sweep
@pytest.mark.spark
def test_spark_reads_the_same_values(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark reads back each value that was written, as text."""
    values = [value for value in NASTY if is_writable(value)]
    acked, failed = write(tmp_path / "out", [*values, None])
    assert (len(acked), failed) == (len(values) + 1, {})
    frame = spark.read.schema("n BIGINT, c STRING").parquet(str(tmp_path / "out"))
    found = {row["n"]: row["c"] for row in frame.collect()}
    wrong = {value: found.get(n) for n, value in enumerate([*values, None]) if found.get(n) != value}
    assert wrong == {}
