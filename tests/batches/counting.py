"""A word count in batches, with the smallest state that keeps the rules, and a source that is a FakeKafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from streamparse import Grouping, Topology

from downspout.batches import (
    BATCH,
    COMMIT,
    CONTROL,
    SUCCESS,
    Attempt,
    Commit,
    Held,
    StateContext,
    StateKind,
    StateStore,
    open_state_store,
)
from downspout.component import Bolt
from spouts.batches import KafkaBatches


class Split(Bolt):
    outputs: ClassVar[list[str]] = ["attempt", "word"]

    def process(self, tup: Any) -> None:
        for word in tup.values.value.split():
            self.emit([tup.values.attempt, word])


class Batch:
    """What is held of a batch: words, and tuples that are not acked as long as the beginning has not come."""

    def __init__(self) -> None:
        self.words: Counter[str] = Counter()
        self.early: list[Any] = []


class Count(Bolt):
    """Counts words in a state of the kind that ``test.kind`` says."""

    auto_ack = False
    auto_anchor = False
    outputs: ClassVar[list[str]] = []

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        self._kind = StateKind(storm_conf["test.kind"])
        self._held = Held(Batch)
        self._store: StateStore = open_state_store(
            storm_conf["test.state"], StateContext("counts", self._kind, owner=storm_conf["topology.name"])
        )

    def process(self, tup: Any) -> None:
        attempt = Attempt.of(tup.values[0])
        held = self._held.of(attempt)
        if tup.stream == SUCCESS:
            self._held.success(attempt.txid)
            self.ack(tup)
        elif tup.stream == COMMIT:
            self._commit(tup, attempt)
        elif held is None:
            self.ack(tup)
        elif tup.stream == BATCH:
            self._held.begin(attempt)
            for early in [*held.early, tup]:
                self.ack(early)
            held.early = []
        else:
            held.words[tup.values[1]] += 1
            if self._held.has_begun(attempt):
                self.ack(tup)
            else:
                held.early.append(tup)

    def _commit(self, tup: Any, attempt: Attempt) -> None:
        held = self._held.of(attempt)
        if held is None or not self._held.may_commit(attempt):
            self.fail(tup)
            return
        with self._store.transaction(attempt) as transaction:
            replaced = transaction.replaced()
            stored = {**transaction.read([(word,) for word in held.words]), **replaced}
            commit = Commit(self._kind, attempt.txid, stored, list(replaced))
            for word, count in held.words.items():
                commit.update((word,), lambda before, count=count: (before or 0) + count)
            transaction.write(commit.changes())
        self.ack(tup)

    def close(self) -> None:
        if hasattr(self, "_store"):
            self._store.close()


def word_count(kind: str = "opaque", par: int = 1, split: type[Split] = Split, **settings: Any) -> type[Topology]:
    """Return a topology: its settings besides those of KafkaBatches go to all components."""
    given = {"topics": ["lines"], "fields": ["value"], "emit_interval_ms": 0, **settings}
    source = KafkaBatches.spec(kind=kind, par=par, **given)
    splitting = split
    control = {source.coordinator[stream]: Grouping.ALL for stream in CONTROL}

    class WordCount(Topology):
        config: ClassVar[dict[str, Any]] = {"test.kind": kind, "test.state": "memory://test"}
        coordinator, lines = source
        split = splitting.spec(inputs=[lines], par=2)
        counts = Count.spec(inputs={split: Grouping.fields("word"), **control}, par=2)

    return WordCount


LINES = [
    "the quick brown fox", "jumps over the lazy dog", "the dog sleeps", "a fox", "and the dog and the fox", "over",
]  # fmt: skip


def counted(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split())


def values_of(state: Any, kind: str) -> dict[str, int]:
    """Return the count of each word in a memory state's forms."""
    at = {"non_transactional": None, "transactional": 1, "opaque": 1}[kind]
    return {key[0]: form if at is None else form[at] for key, (form, _) in state.forms.items()}
