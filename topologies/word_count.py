"""Word count: lines of text in, the count of each word out, exact however often the run is interrupted.

    spout ──▶ split ──▶ word_counts

``split`` emits several tuples per input. Each word has its own identity (the line's, and the word's index), so the sink
can tell a replayed word from a repeated one. ``word_counts`` has two tasks and a fields grouping on the word. It writes
partial counts: each flush counts its own words. ``word_count_report.py`` finishes them::

    downspout kafka start
    downspout kafka produce lines < some.txt
    downspout run topologies/word_count.py --until end
    python -m topologies.word_count_report

Its native Spark version, ``word_count_spark.py``, counts the same lines without spouts and bolts.

Compare streamparse's classic word count, which keeps the counts in a bolt's memory: after a crash it restarts at 0, and
a replayed line is counted twice.
"""

from __future__ import annotations

from streamparse import Grouping, Topology

from bolts.aggregate import AggregateBolt
from bolts.split import SplitBolt
from spouts.kafka import KafkaSpout


class WordCount(Topology):
    """Kafka in, partial counts out."""

    # A line is done when its last word is in a file; words are many, so flushes are large, and lines in flight limited.
    config = {  # noqa: RUF012 - streamparse wants a plain class attribute
        "topology.max.spout.pending": 50_000,
        "kafka.commit_period_ms": 5_000,
        "parquet.flush_rows": 50_000,
    }

    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    split = SplitBolt.spec(inputs=[spout])
    word_counts = AggregateBolt.spec(
        inputs={split: Grouping.fields("word")},
        par=2,
        directory="output/word_counts",
        schema={"word": "string!"},
        keys=["word"],
        aggregates=["count"],
    )
