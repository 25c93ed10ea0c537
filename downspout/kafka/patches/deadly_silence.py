"""A producer that a broker's silence ends for good.

Wrong: where a request for a producer's id, or of a transaction, gets no answer in time (30 s), the producer is in its
    fatal state: "Could not execute transactional request for unknown reasons". All batches fail with that, also those
    that other brokers would take. Only a connection that breaks lets it ask again.
Patch: what passes by itself (a time-out, a node that is not ready) counts as such a connection.
Self-test: where the manager queues its requests.
Since: 3.0.12 was read.
Goes when: ``TxnRequestHandler.on_complete`` asks again after errors that are retriable.
"""

from __future__ import annotations

from typing import Any

from kafka import errors

IDEMPOTENT = {"producer._transaction_manager._enqueue_request": "method"}
"""What an idempotent producer must have."""


def ask_again_after_silence(producer: Any) -> None:
    """Let an idempotent or transactional producer ask again where a request got no answer."""
    manager = producer._transaction_manager
    if manager is None:
        return
    stock = manager._enqueue_request

    def enqueue(handler: Any) -> None:
        if not hasattr(handler, "hears_silence"):
            handler.on_complete, handler.hears_silence = hearing(handler.on_complete), True
        stock(handler)

    manager._enqueue_request = enqueue


def hearing(on_complete: Any) -> Any:
    """Return what takes an answer as ``on_complete`` does, and silence as a connection that broke."""

    def take(correlation_id: Any, answer: Any) -> None:
        if isinstance(answer, errors.KafkaError) and answer.retriable:
            answer = errors.KafkaConnectionError(str(answer))
        on_complete(correlation_id, answer)

    return take
