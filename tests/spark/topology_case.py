"""The acceptance topology for Spark, and one whose stateful bolt fails."""

from __future__ import annotations

from typing import Any, ClassVar

from streamparse import Grouping, Topology

from bolts.kafka import KafkaBolt
from tests.spark.topology_bolts import (
    COUNT,
    WORD,
    Count,
    KeyedCount,
    KeyedTicker,
    Lots,
    Split,
    Tag,
    Ticker,
    lines,
    sink,
)  # fmt: skip


class Case(Topology):
    """Two inputs on one bolt, a named stream, stateful bolts, a BatchingBolt, ticks, and four sinks.

    ``count`` numbers the words of both its inputs. Which of two equal words gets which number is not determined; that
    each number is there once, is.
    """

    config: ClassVar[dict[str, Any]] = {"kafka.retry_delay_ms": 1, "kafka.retries_max": 1, "kafka.breaker_ratio": 0}

    spout = lines()
    split = Split.spec(inputs=[spout])
    tag = Tag.spec(inputs=[split["long"]])
    count = Count.spec(inputs={split: Grouping.fields("word"), tag: Grouping.fields("word")}, par=2)
    lots = Lots.spec(inputs=[split])
    ticker = Ticker.spec(inputs={count: Grouping.GLOBAL}, config={"topology.tick.tuple.freq.secs": 3600})
    words = sink([split], "out/words", WORD, partition_by=[])
    counts = sink([count], "out/counts", COUNT)
    batches = sink([lots], "out/batches", WORD)
    ticks = sink([ticker], "out/ticks", COUNT)


class Plain(Topology):
    config: ClassVar[dict[str, Any]] = Case.config

    spout = lines()
    split = Split.spec(inputs=[spout])
    tag = Tag.spec(inputs=[split["long"]])
    count = Count.spec(inputs={split: Grouping.fields("word"), tag: Grouping.fields("word")}, par=2)
    words = sink([split], "out/words", WORD)
    counts = sink([count], "out/counts", COUNT)


class Published(Plain):
    """The same, which also writes words and counts to Kafka."""

    spout, split, tag, count, words, counts = (
        Plain.spout,
        Plain.split,
        Plain.tag,
        Plain.count,
        Plain.words,
        Plain.counts,
    )
    out = KafkaBolt.spec(inputs=[split, count], fields={"message": "word"})


class Keyed(Topology):
    """Bolts that are kept by key, of several tasks; one tells at ticks."""

    config: ClassVar[dict[str, Any]] = Case.config

    spout = lines()
    split = Split.spec(inputs=[spout])
    tag = Tag.spec(inputs=[split["long"]])
    count = KeyedCount.spec(inputs={split: Grouping.fields("word"), tag: Grouping.fields("word")}, par=2)
    ticker = KeyedTicker.spec(
        inputs={split: Grouping.fields("word")}, par=2, config={"topology.tick.tuple.freq.secs": 3600}
    )
    words = sink([split], "out/words", WORD)
    counts = sink([count], "out/counts", COUNT)
    ticks = sink([ticker], "out/ticks", COUNT)
