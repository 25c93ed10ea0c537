"""Bolts and topologies of the tests of topologies on Spark. The bolts know nothing about Spark."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, ClassVar

from streamparse import BatchingBolt, Bolt, Grouping, Stream, TicklessBatchingBolt, Topology

from bolts.parquet import ParquetBolt
from downspout.engine import Graph, from_class
from downspout.ledger import Origin
from spouts.kafka import KafkaSpout

WORDS = ["origin", "word"]
WORD = {"word": "string"}
COUNT = {"word": "string", "n": "int64"}
GATE = "TOPOLOGY_GATE"
"""Environment: the file for which Split waits at the word "gate"; not set: that is a word like any other.

While it waits there is a file of that name with ".waits" behind it.
"""


class Split(Bolt):
    """One tuple per word; long ones on a stream too. Raises on "poison", exits on "exit", waits at "gate"."""

    outputs: ClassVar[Any] = [Stream(WORDS), Stream(WORDS, name="long")]
    exit_on_exception = False

    def process(self, tup: Any) -> None:
        origin = Origin.of(tup.values.origin)
        for index, word in enumerate((tup.values.value or "").split()):
            if word == "poison":
                raise ValueError("poison")
            if word == "exit":
                sys.exit(3)
            while word == "gate" and GATE in os.environ and not Path(os.environ[GATE]).exists():
                Path(f"{os.environ[GATE]}.waits").touch()
                time.sleep(0.05)
            self.emit([origin.child("split", index), word])
            if len(word) > 4:
                self.emit([origin.child("split", index, stream="long"), word], stream="long")


class Harmless(Split):
    def process(self, tup: Any) -> None:
        origin = Origin.of(tup.values.origin)
        for index, word in enumerate(tup.values.value.split()):
            self.emit([origin.child("split", index), word])


class FirstTimeLucky(Split):
    """Fails each line the first time, after it has emitted some of its words."""

    def initialize(self, conf: Any, context: Any) -> None:
        self.seen: set[Any] = set()

    def process(self, tup: Any) -> None:
        super().process(tup)
        if (place := tuple(tup.values.origin)) not in self.seen:
            self.seen.add(place)
            raise ValueError("not yet")


class Brittle(Split):
    """Dies of every error, as streamparse's bolts do by default."""

    exit_on_exception = True


class Tag(Bolt):
    outputs: ClassVar[Any] = WORDS

    def process(self, tup: Any) -> None:
        self.emit([Origin.of(tup.values.origin).child(self.component_name, 0), tup.values.word.upper()])


failed_once: set[Any] = set()
"""What UnluckyTag has failed. A class's own would be each task's on Spark, and as it was where a batch begins anew."""


class UnluckyTag(Tag):
    """Fails each word the first time, after it has emitted; in all of this process, whatever is computed again."""

    exit_on_exception = False

    def process(self, tup: Any) -> None:
        super().process(tup)
        if (place := (self.component_name, *tup.values.origin)) not in failed_once:
            failed_once.add(place)
            raise ValueError("not yet")


class Count(Bolt):
    """Counts words in memory, beside a lock, which nobody can pickle. Raises on "bad", after it has counted it."""

    outputs: ClassVar[Any] = ["origin", "word", "n"]
    exit_on_exception = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    def process(self, tup: Any) -> None:
        word = tup.values.word
        with self.lock:
            self.counts[word] += 1
        if word == "bad":
            raise KeyError(word)
        self.emit([Origin.of(tup.values.origin).child(self.component_name, 0), word, self.counts[word]])


class HarmlessCount(Count):
    def process(self, tup: Any) -> None:
        word = tup.values.word
        self.counts[word] += 1
        self.emit([Origin.of(tup.values.origin).child(self.component_name, 0), word, self.counts[word]])


class KeyedCount(Count):
    """Counts words, and is kept by key on Spark."""

    stateful_keys = "counts"


class KeyedTicker(Bolt):
    """Keeps the words of each first letter in a list that it changes in place; tells and forgets them at ticks."""

    outputs: ClassVar[Any] = ["word", "n"]
    stateful_keys = "words"

    def initialize(self, conf: Any, context: Any) -> None:
        self.words: defaultdict[str, list[str]] = defaultdict(list)

    def process(self, tup: Any) -> None:
        if (word := tup.values.word) == "drop":
            self.words.pop("a", None)
        else:
            self.words[word[0]].append(word)

    def process_tick(self, tup: Any) -> None:
        for letter, words in sorted(self.words.items()):
            self.emit([letter, len(words)])
        self.words = defaultdict(list)


class BrittleCount(Count):
    """Dies of a bad word, and its memory with it."""

    exit_on_exception = True


class ClassCount(Count):
    """Counts in the class's body, as many do."""

    totals: ClassVar[Counter[str]] = Counter()
    factors: ClassVar[dict[str, int]] = {"default": 1}

    def process(self, tup: Any) -> None:
        word = tup.values.word
        self.totals[word] += self.factors["default"]
        self.emit([Origin.of(tup.values.origin).child(self.component_name, 0), word, self.totals[word]])


class Pairs(Bolt):
    """Holds each word until its second one comes, whichever batch that is in; then it emits one tuple of both."""

    outputs: ClassVar[Any] = ["origin", "word", "n"]
    auto_ack = False
    auto_anchor = False
    exit_on_exception = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.waiting: dict[str, Any] = {}

    def process(self, tup: Any) -> None:
        word = tup.values.word
        if (first := self.waiting.pop(word, None)) is None:
            self.waiting[word] = tup
            return
        if word == "refused":
            self.fail(first)
        else:
            origin = Origin.of(first.values.origin).child("pairs", 0)
            self.emit([origin, word, 2], anchors=[first, tup])
            self.ack(first)
        self.ack(tup)


class LatePairs(Pairs):
    """Anchors a pair to its first word alone."""

    def process(self, tup: Any) -> None:
        word = tup.values.word
        if (first := self.waiting.pop(word, None)) is None:
            self.waiting[word] = tup
            return
        self.emit([Origin.of(first.values.origin).child("pairs", 0), word, 2], anchors=[first])
        self.ack(first)
        self.ack(tup)


class BrittlePairs(Pairs):
    """Dies of a bad word, and forgets what it holds."""

    exit_on_exception = True

    def process(self, tup: Any) -> None:
        if tup.values.word == "bad":
            raise KeyError("bad")
        super().process(tup)


class Second(Count):
    """Raises on "worse", which the first of two counts takes."""

    def process(self, tup: Any) -> None:
        if tup.values.word == "worse":
            raise KeyError("worse")
        super().process(tup)


class Picky(Tag):
    exit_on_exception = False

    def process(self, tup: Any) -> None:
        if tup.values.word == "abad":
            raise ValueError("no")
        super().process(tup)


class Forgetful(Bolt):
    outputs: ClassVar[Any] = WORDS
    auto_ack = False

    def process(self, tup: Any) -> None:
        pass


class Lots(BatchingBolt):
    """Emits each word with the size of its lot, anchored to the whole lot."""

    outputs: ClassVar[Any] = ["origin", "word", "n"]

    def group_key(self, tup: Any) -> Any:
        return tup.values.word[:1]

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        for tup in tups:
            self.emit([Origin.of(tup.values.origin).child(self.component_name, 0), tup.values.word, len(tups)])


class StubbornLots(Lots):
    """Raises on each lot of "b", and keeps the others."""

    exit_on_exception = False

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        """Emit a lot, and raise on it if it is a bad one."""
        super().process_batch(key, tups)
        if any(tup.values.word == "b" for tup in tups):
            raise ValueError("no lots of b")


class UnluckyLots(Lots):
    """Raises on its first lot, and fails none of its tuples."""

    exit_on_exception = False
    auto_fail = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.is_first = True

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        if self.is_first:
            self.is_first = False
            raise ValueError("not yet")
        super().process_batch(key, tups)


class TimedLots(TicklessBatchingBolt):
    """The same, by a timer of its own."""

    outputs: ClassVar[Any] = ["origin", "word", "n"]
    secs_between_batches = 1

    def group_key(self, tup: Any) -> Any:
        pass

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        for tup in tups:
            self.emit([Origin.of(tup.values.origin).child("timed", 0), tup.values.word, 1])


class Ticker(Bolt):
    """At each tick, tells what was counted since the last one."""

    outputs: ClassVar[Any] = ["word", "n"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.counts: Counter[str] = Counter()

    def process(self, tup: Any) -> None:
        self.counts[tup.values.word] += 1

    def process_tick(self, tup: Any) -> None:
        for word, count in self.counts.items():
            self.emit([word, count])
        self.counts.clear()


class BadTicker(Ticker):
    def process_tick(self, tup: Any) -> None:
        raise RuntimeError("no time")


class Places(Bolt):
    """Tells which task it is, and to which tasks its tuples go."""

    outputs: ClassVar[Any] = ["origin", "word", "task", "targets"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.names = context["task->component"]

    def process(self, tup: Any) -> None:
        child = Origin.of(tup.values.origin).child("places", 0)
        sent = self.emit([child, tup.values.word, self.task_id, ""], need_task_ids=True)
        told = ",".join(sorted(self.names[str(task)] for task in sent or ()))
        second = Origin.of(tup.values.origin).child("places", 1)
        self.emit([second, tup.values.word, self.task_id, told])


def words_of(record: Any) -> list[list[str]]:
    """Translate a record: one tuple per word, none of an empty one."""
    return [[word] for word in (record.value or b"").decode().split()]


class UnluckyOnce(Tag):
    """Fails the last word of each line the first time."""

    exit_on_exception = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.seen: set[Any] = set()

    def process(self, tup: Any) -> None:
        if tup.values.word == "last" and (place := tuple(tup.values.origin)) not in self.seen:
            self.seen.add(place)
            raise ValueError("not yet")
        if tup.values.word == "never":
            raise ValueError("never")
        super().process(tup)


def lines(**settings: Any) -> Any:
    return KafkaSpout.spec(topics=["lines"], fields=["origin", "value"], **settings)


def sink(inputs: Any, directory: Any, schema: dict[str, str] | None = None, **settings: Any) -> Any:
    return ParquetBolt.spec(inputs=inputs, directory=str(directory), schema=schema or COUNT, **settings)


def graph_of(name: str = "Case", config: dict[str, Any] | None = None, **specs: Any) -> Graph:
    """Return the graph of a topology whose components are given by name."""
    cls = type(name, (Topology,), {**specs, "config": config or {}})
    return from_class(cls, name)


def counting(out: Any, *, split: Any = Split, count: Any = Count, par: int = 2, **settings: Any) -> Graph:
    spout = lines(**settings)
    words = split.spec(inputs=[spout])
    counted = count.spec(inputs={words: Grouping.fields("word")}, par=par)
    return graph_of(
        spout=spout,
        split=words,
        count=counted,
        words=sink([words], out / "words", WORD),
        counts=sink([counted], out / "counts"),
    )
