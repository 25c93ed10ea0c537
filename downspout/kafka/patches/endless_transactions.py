"""Ends of transactions that are waited for without end.

Wrong: ``commit_transaction``, ``abort_transaction`` and ``send_offsets_to_transaction`` wait for their answer for ever,
    so a broker that is away holds the caller's thread. And ``send`` is the only way to let a partition take part.
Patch: the transaction manager is asked, and the wait has an end; partitions are added where batches are put in.
Self-test: the manager's methods, and that of a result.
Since: 3.0.12 was read.
Goes when: these methods take a time-out, as Java's have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka import errors

TRANSACTIONAL = {
    "producer._transaction_manager.begin_transaction": "method",
    "producer._transaction_manager.begin_commit": "method",
    "producer._transaction_manager.begin_abort": "method",
    "producer._transaction_manager.send_offsets_to_transaction": "method",
    "producer._transaction_manager.maybe_add_partition_to_transaction": "method",
    "producer._transaction_manager.is_transactional": "method",
    "producer._transaction_manager.has_abortable_error": "method",
    "producer._transaction_manager.producer_id_and_epoch": "ProducerIdAndEpoch",
    "producer._sender.wakeup": "method",
}
"""What a transactional producer must have."""


def is_transactional(producer: Any) -> bool:
    """Return whether what a producer sends is part of transactions."""
    manager = producer._transaction_manager
    return manager is not None and bool(manager.is_transactional())


def identity(producer: Any) -> tuple[int, int]:
    """Return the id and the epoch under which a transactional producer is known to the brokers."""
    found = producer._transaction_manager.producer_id_and_epoch
    return found.producer_id, found.epoch


def add_partition(producer: Any, partition: Any) -> None:
    """Let a partition take part in the transaction that is open.

    Raises:
        TransactionAbortedError: the transaction can only be aborted; its cause is the error that a batch met before.
        KafkaError: none is open, or the producer has failed; the error is that of its failure.
    """
    manager = producer._transaction_manager
    try:
        manager.maybe_add_partition_to_transaction(partition)
    except errors.KafkaError as error:
        if manager.has_abortable_error() and manager.last_error is not None:
            raise errors.TransactionAbortedError(str(manager.last_error)) from manager.last_error
        raise (manager.last_error or error) from None


def send_offsets(producer: Any, offsets: Mapping[Any, Any], group: Any, timeout_s: float) -> None:
    """Make offsets of a consumer group part of the transaction; raises as :func:`end`."""
    _wait(producer, lambda: producer._transaction_manager.send_offsets_to_transaction(offsets, group), timeout_s)


def end(producer: Any, *, commit: bool, timeout_s: float) -> None:
    """Commit or abort the transaction that is open.

    Raises:
        KafkaTimeoutError: there is no answer: it may have taken effect, or may do so later.
        KafkaError: the brokers refuse, or the producer has failed.
    """
    manager = producer._transaction_manager
    _wait(producer, manager.begin_commit if commit else manager.begin_abort, timeout_s)


def _wait(producer: Any, ask: Callable[[], Any], timeout_s: float) -> None:
    try:
        result = ask()
    except errors.KafkaError as error:
        raise (producer._transaction_manager.last_error or error) from None
    producer._sender.wakeup()
    if not result.wait(timeout_ms=timeout_s * 1000):
        raise errors.KafkaTimeoutError(f"no answer within {timeout_s:g} s")
