"""Finishes the counts that ``word_count.py`` leaves, and shows the most frequent words.

    python -m topologies.word_count_report --output output

It needs PySpark (``downspout[spark]``). The topology writes partial counts: each flush of each task adds its own, so a
word has many rows, whose sum is the count. (``word_count_spark.py`` does all of the work in Spark, from the lines on.)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from downspout.spark.read import finish_aggregates, read_sink
from downspout.spark.session import spark_session


def word_counts(partials: DataFrame) -> DataFrame:
    """Return each word with its count."""
    return finish_aggregates(partials, ["word"], ["count"])


def run(spark: SparkSession, output: Path) -> dict[str, int]:
    """Return the finished counts of the directory ``word_counts`` below ``output``."""
    rows = word_counts(read_sink(spark, output / "word_counts")).collect()
    return {row["word"]: row["count"] for row in rows}


def main() -> None:
    """Print the most frequent words."""
    parser = argparse.ArgumentParser(description="Finish the word counts with PySpark.")
    parser.add_argument("--output", type=Path, default=Path("output"), help="where the topology wrote")
    parser.add_argument("--top", type=int, default=20, help="how many words")
    options = parser.parse_args()
    with spark_session("word_count") as spark:
        counts = word_counts(read_sink(spark, options.output / "word_counts"))
        for row in counts.orderBy(F.desc("count"), "word").limit(options.top).collect():
            print(f"{row['count']:>10,}  {row['word']}")


if __name__ == "__main__":
    main()
