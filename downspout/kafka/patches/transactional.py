"""Idempotent and transactional producers: fatal errors, lost ids, and waits without a timeout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka import errors
from kafka.producer.transaction_manager import TransactionState

# --- A refused record ends its producer ---

FATAL = (
    errors.ClusterAuthorizationFailedError, errors.TransactionalIdAuthorizationFailedError,
    errors.ProducerFencedError, errors.InvalidTxnStateError, errors.UnsupportedVersionError,
    errors.SaslAuthenticationFailedError,
)  # fmt: skip
"""Errors that another producer would get too."""
REFUSALS = (
    errors.MessageSizeTooLargeError, errors.RecordListTooLargeError, errors.InvalidRecordError,
    errors.InvalidTimestampError, errors.InvalidTopicError, errors.TopicAuthorizationFailedError,
    errors.PolicyViolationError, errors.UnknownTopicOrPartitionError,
)  # fmt: skip
"""Errors after which none of the batch is in the log."""


def go_on_after_refusals(producer: Any) -> None:
    """Let an idempotent producer continue after the broker refused a batch; in a transaction, after its abort.

    After a refusal none of the batch is in the log, and a partition has only one batch in flight (idempotent
    producers mute it meanwhile): the next batch reuses the sequence numbers. If the batch was sent before, that attempt
    may have been written, and the broker would drop the next batch as a duplicate. Then, and if an error leaves open
    whether anything was written, a new epoch begins. In a transaction, in which the client would leave a gap in the
    sequence numbers, the same rule applies, or the producer is over and its owner makes another. Unsent batches of the
    transaction get an error of their own, caused by the refused batch's.

    Wrong: an idempotent producer treats every non-retriable error as fatal, such as a record that is too large, or a
        denied topic. It then fails all other batches with that error, even those in flight that may have been written.
        Kafka's Java client continues.
    Goes when: ``classify_batch_error`` distinguishes refusals from fatal errors.
    """
    manager = producer._transaction_manager
    if manager is None:
        return
    classify = manager.classify_batch_error
    if manager.is_transactional():
        _blame_one(producer._accumulator)
        goes_on, otherwise = manager.ERROR_CLASS_ABORTABLE, manager.ERROR_CLASS_FATAL
    else:
        goes_on = manager.ERROR_CLASS_RETRIABLE  # at this point: fail the batch, and nothing else
        bumps = manager._supports_epoch_bump()
        otherwise = manager.ERROR_CLASS_NEEDS_EPOCH_BUMP if bumps else manager.ERROR_CLASS_NEEDS_PRODUCER_ID_RESET

    def decide(error: Any, batch: Any, log_start_offset: int = -1) -> Any:
        found = classify(error, batch, log_start_offset)
        kind = error if isinstance(error, type) else type(error)
        if found == manager.ERROR_CLASS_RETRIABLE and manager.is_transactional():
            return otherwise  # the batch expires anyway: a commit would lack it
        if found == manager.ERROR_CLASS_RETRIABLE or issubclass(kind, FATAL):
            return found
        if issubclass(kind, REFUSALS) and not batch.in_retry() and batch.has_sequence:
            manager.set_sequence_number(batch.topic_partition, batch.base_sequence)
            return goes_on
        return otherwise

    manager.classify_batch_error = decide


def _blame_one(accumulator: Any) -> None:
    """Give a separate error to batches dropped because another batch of the transaction was refused."""
    stock = accumulator.abort_undrained_batches

    def abort(error: Any) -> None:
        if not isinstance(error, errors.TransactionAbortedError):
            cause, error = error, errors.TransactionAbortedError(str(error))
            error.__cause__ = cause
        stock(error)

    accumulator.abort_undrained_batches = abort


def is_over(producer: Any) -> bool:
    """Return whether a producer has a fatal error."""
    manager = producer._transaction_manager
    return manager is not None and manager.has_fatal_error()


# --- A producer loses its id and never gets another ---


def ask_for_another_id(producer: Any) -> None:
    """Let an idempotent producer that has dropped its id continue with a new id or epoch.

    It begins a new epoch, or, if the brokers do not support that, returns to its initial state. In a transaction
    nothing is done: the producer is over.

    Wrong: when a batch that was sent before expires, an idempotent producer drops its id (``reset_producer_id``), to
        request a new one before it sends anything else. But it requests one only in its initial state: it never sends,
        expires or logs anything again. In a transaction the same call raises in its thread.
    Goes when: ``reset_producer_id`` requests a new id.
    """
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


# --- A broker's silence ends a producer ---


def ask_again_after_silence(producer: Any) -> None:
    """Make an idempotent or transactional producer retry an unanswered request.

    A retriable error (a timeout, a node that is not ready) counts as a broken connection.

    Wrong: if a request for a producer's id, or of a transaction, times out (30 s), the producer has a fatal error
        ("Could not execute transactional request for unknown reasons"): all batches fail, even for other brokers. It
        retries only after a broken connection.
    Goes when: ``TxnRequestHandler.on_complete`` retries after retriable errors.
    """
    manager = producer._transaction_manager
    if manager is None:
        return
    stock = manager._enqueue_request

    def enqueue(handler: Any) -> None:
        if not hasattr(handler, "hears_silence"):
            handler.on_complete, handler.hears_silence = _hearing(handler.on_complete), True
        stock(handler)

    manager._enqueue_request = enqueue


def _hearing(on_complete: Any) -> Any:
    def take(correlation_id: Any, answer: Any) -> None:
        if isinstance(answer, errors.KafkaError) and answer.retriable:
            answer = errors.KafkaConnectionError(str(answer))
        on_complete(correlation_id, answer)

    return take


# --- Ending a transaction has no timeout ---


def end(producer: Any, *, commit: bool, timeout_s: float) -> None:
    """Commit or abort the open transaction.

    Wrong: ``commit_transaction``, ``abort_transaction`` and ``send_offsets_to_transaction`` wait without limit: a dead
        broker blocks the caller's thread. And only ``send`` adds a partition.
    Goes when: these methods take a timeout, as Java's do.

    Raises:
        KafkaTimeoutError: no answer: the request may have taken effect, or may do so later.
        KafkaError: the brokers refuse, or the producer has failed.
    """
    manager = producer._transaction_manager
    _wait(producer, manager.begin_commit if commit else manager.begin_abort, timeout_s)


def send_offsets(producer: Any, offsets: Mapping[Any, Any], group: Any, timeout_s: float) -> None:
    """Add a consumer group's offsets to the transaction; raises like :func:`end`."""
    _wait(producer, lambda: producer._transaction_manager.send_offsets_to_transaction(offsets, group), timeout_s)


def _wait(producer: Any, ask: Callable[[], Any], timeout_s: float) -> None:
    try:
        result = ask()
    except errors.KafkaError as error:
        raise (producer._transaction_manager.last_error or error) from None
    producer._sender.wakeup()
    if not result.wait(timeout_ms=timeout_s * 1000):
        raise errors.KafkaTimeoutError(f"no answer within {timeout_s:g} s")


def is_transactional(producer: Any) -> bool:
    """Return whether a producer is transactional."""
    manager = producer._transaction_manager
    return manager is not None and bool(manager.is_transactional())


def identity(producer: Any) -> tuple[int, int]:
    """Return the producer id and epoch of a transactional producer."""
    found = producer._transaction_manager.producer_id_and_epoch
    return found.producer_id, found.epoch


def add_partition(producer: Any, partition: Any) -> None:
    """Add a partition to the open transaction.

    Raises:
        TransactionAbortedError: the transaction can only be aborted, because of an earlier batch's error (its cause).
        KafkaError: no transaction is open, or the producer has failed (with its error).
    """
    manager = producer._transaction_manager
    try:
        manager.maybe_add_partition_to_transaction(partition)
    except errors.KafkaError as error:
        if manager.has_abortable_error() and manager.last_error is not None:
            raise errors.TransactionAbortedError(str(manager.last_error)) from manager.last_error
        raise (manager.last_error or error) from None
