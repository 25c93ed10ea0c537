"""The native Spark version of ``word_count.py``: from the lines in Kafka to the counts of words, by DataFrames alone.

    lines ──▶ words ──▶ word_counts

======================================  ================================================================================
in the topology                         here
======================================  ================================================================================
KafkaSpout                              ``spark.read.format("downspout")``, or ``readStream``
SplitBolt: one tuple in, many out       ``explode``: one row in, many out
an identity of its own for each word    nothing: Spark reads each offset once, and computes a lost task anew
``Grouping.fields("word")``             ``groupBy("word")``
AggregateBolt: partial counts           the same, inside ``groupBy``; what comes out is finished
======================================  ================================================================================

The topology dead-letters a line that is no UTF-8 and passes over one without a word or without a value; here all of
them are left out. Run it as a batch over what is in the topic, or as a stream that shows the counts after each batch::

    python -m topologies.word_count_spark
    python -m topologies.word_count_spark --stream
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from downspout.spark import register
from downspout.spark.session import spark_session

BLANKS = r"[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
r"""What separates words for Python's ``str.split``. Java's ``\s`` knows six blanks, and would leave a no-break space
inside a word."""


def native(spark: SparkSession, records: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    """Return the finished table by the name of the topology's sink, as a plan.

    Args:
        spark: the session.
        records: the Kafka records of ``spout``, as the source gives them, of a batch or of a stream.
    """
    return {"word_counts": word_counts(words(records["spout"]))}


def words(lines: DataFrame) -> DataFrame:
    """Return the words of the lines, one row each."""
    text = F.try_validate_utf8(F.col("value").cast("string"))  # null where it is no UTF-8
    # explode makes no row of null. Before a line's first blank and after its last one split finds an empty word.
    return lines.select(F.explode(F.split(text, BLANKS)).alias("word")).where("word != ''")


def word_counts(words: DataFrame) -> DataFrame:
    """Return each word with its count.

    In a stream Spark keeps the counts between the batches, for ever: words do not end. Where keys go out of use, as
    days and sessions do, a watermark lets Spark forget them.
    """
    return words.groupBy("word").agg(F.count("*").alias("count"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the most frequent words."""
    parser = argparse.ArgumentParser(description="Count words with PySpark alone, from Kafka to the screen.")
    parser.add_argument("--bootstrap", help="brokers as host:port (default: the one of `downspout kafka start`)")
    parser.add_argument("--topic", default="lines", help="where the lines are (lines)")
    parser.add_argument("--top", type=int, default=20, help="how many words (20)")
    parser.add_argument("--stream", action="store_true", help="show them after each batch, until Ctrl-C")
    options = parser.parse_args(arguments)
    if options.bootstrap is None:
        from downspout.broker.embedded import find_bootstrap

        options.bootstrap = find_bootstrap()
    source = {"kafka.bootstrap.servers": options.bootstrap, "subscribe": options.topic}

    def show(counts: DataFrame, _: int = 0) -> None:
        for row in counts.orderBy(F.desc("count"), "word").limit(options.top).collect():
            print(f"{row['count']:>10,}  {row['word']}")
        print()

    with spark_session("word_count_spark") as spark:
        register(spark)
        if not options.stream:
            show(native(spark, {"spout": spark.read.format("downspout").options(**source).load()})["word_counts"])
            return
        lines = spark.readStream.format("downspout").options(**source, startingOffsets="earliest").load()
        counts = native(spark, {"spout": lines})["word_counts"]
        counts.writeStream.outputMode("complete").foreachBatch(show).start().awaitTermination()


if __name__ == "__main__":
    main()
