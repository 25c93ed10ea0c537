"""The error of a record that was retried until it expired."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kafka import errors
from kafka.structs import TopicPartition

from downspout.kafka import keep_reasons
from downspout.producing import error_of_record

TP = TopicPartition("out", 0)
FEW = errors.NotEnoughReplicasError
EXPIRED = errors.KafkaTimeoutError("Expiring 1 record(s)")


class Scene:
    """A producer that has a batch on its way, to a partition of which one replica of three is in sync."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.asked = 0
        partition = SimpleNamespace(isr_nodes=[1], replica_nodes=[3, 1, 2])
        metadata = SimpleNamespace(_partitions={"out": {0: partition}}, request_update=self._ask)
        sender = SimpleNamespace(_dispatch_error=lambda batch, error, _: self.found.append(error))
        keep_reasons(SimpleNamespace(_metadata=metadata, _sender=sender))
        batch = SimpleNamespace(topic_partition=TP)
        self.answer = lambda error: sender._dispatch_error(batch, error, partition_response=None)

    def _ask(self) -> None:
        self.asked += 1

    def said(self, *answers: BaseException) -> str:
        for answer in answers:
            self.answer(answer)
        return str(error_of_record("bolt", "in[0]@7: ", "out[0]", self.found[-1]))


def test_a_record_that_expires_tells_the_last_answer() -> None:
    said = Scene().said(errors.NotLeaderForPartitionError("moved"), EXPIRED)
    assert "Expiring 1 record(s)" in said
    assert "the last answer was NotLeaderForPartitionError: moved" in said


def test_too_few_replicas_are_named() -> None:
    """After the first of these errors the client asks; the ones that follow name the brokers."""
    scene = Scene()
    said = scene.said(FEW(None), FEW(None), EXPIRED)
    assert scene.asked == 2
    assert "out[0] has fewer replicas in sync (ISR) than its min.insync.replicas" in said
    assert "in sync: broker 1; not in sync: brokers 2, 3" in said
    assert "Try: start the brokers" in said


def test_metadata_of_before_are_not_told() -> None:
    """What the client knew at the first of these errors may be older than that."""
    assert "in sync: broker" not in Scene().said(FEW(None))
    assert "in sync: broker 1" in Scene().said(FEW(None), FEW(None))


def test_a_record_that_expires_unsent_has_no_answer() -> None:
    assert "last answer" not in Scene().said(errors.KafkaTimeoutError("Expiring 1 record(s)"))
