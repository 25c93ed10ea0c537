"""A producer that loses its id and never gets another.

Wrong: where a batch that was sent before expires, an idempotent producer drops its id (``reset_producer_id``), to get a
    new one before it sends anything else. But it asks for one in its first state alone, and that is over: it sends
    nothing any more, expires nothing, and says nothing. In a transaction the same call raises in the client's thread.
Patch: a new epoch is begun instead, as after other errors that do not say whether anything was written; with brokers
    that have no such request, the first state is that of the producer again. In a transaction nothing is done here: the
    producer is over (``fatal_refusals``).
Self-test: both calls, and the state.
Since: 3.0.12 was read.
Goes when: ``reset_producer_id`` has a new id asked for.
"""

from __future__ import annotations

from typing import Any

from kafka.producer.transaction_manager import TransactionState

IDEMPOTENT = {
    "producer._transaction_manager.reset_producer_id": "method",
    "producer._transaction_manager.bump_producer_id_and_epoch": "method",
    "producer._transaction_manager.is_transactional": "method",
    "producer._transaction_manager._supports_epoch_bump": "method",
    "producer._transaction_manager._current_state": "TransactionState",
}


def ask_for_another(producer: Any) -> None:
    """Let an idempotent producer that has dropped its id go on with another, or with another epoch."""
    manager = producer._transaction_manager
    if manager is None:
        return
    reset = manager.reset_producer_id

    def begin_anew() -> None:
        if manager.is_transactional():
            return
        if manager._supports_epoch_bump():
            manager.bump_producer_id_and_epoch()
        else:
            reset()
            manager._current_state = TransactionState.UNINITIALIZED

    manager.reset_producer_id = begin_anew
