"""A producer that has ended, and its replacement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from downspout.errors import SilentBrokersError
from downspout.kafka import Sent, producer


class Batches:
    """Those of a producer: each record that it was given fails when it is over."""

    made: list[Batches]

    def __init__(self, made_by: Any, partitioner: Any, linger_s: float) -> None:
        self.stuck, self.is_over, self.error, self.retried = SimpleNamespace(after_s=0.0), False, None, 0
        self._results: list[Sent] = []
        self.made.append(self)

    def add(self, topic: str, *record: Any) -> None:
        """Take a record that is refused in a moment, and each behind it."""
        self._results.append(Sent([record[-1]], topic, 0, -1, ValueError("refused"), 0.0))
        self.is_over, self.retried = True, 1

    def keep(self, results: list[Sent]) -> None:
        self._results[:0] = results

    def take_results(self) -> list[Sent]:
        found, self._results = self._results, []
        return found

    def end(self) -> None:
        """Nothing is held."""

    def hand_over(self, *, old: bool = False) -> None:
        """Nothing is held."""

    def collect(self) -> None:
        """All is answered."""


def test_answers_are_told_though_no_new_producer_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a producer is over and no broker answers, each record that it was given is told of once."""
    Batches.made, away = [], [False]
    monkeypatch.setattr(producer, "RecordBatches", Batches)
    monkeypatch.setattr(producer, "abandon", lambda given: None)

    def make() -> object:
        if away[0]:
            raise SilentBrokersError("No Kafka at b:9092")
        return object()

    port = producer.KafkaProducerPort(make)
    port.send("t", key=None, value=b"1", token="first")
    away[0] = True
    port.send("t", key=None, value=b"2", token="second")
    port.send("t", key=None, value=b"3", token="third")
    assert sorted(token for sent in port.results() for token in sent.tokens) == ["first", "second", "third"]
    away[0] = False
    port.send("t", key=None, value=b"4", token="fourth")
    assert [sent.tokens for sent in port.results()] == [["fourth"]]
    assert (len(Batches.made), port.retried) == (2, 2)
