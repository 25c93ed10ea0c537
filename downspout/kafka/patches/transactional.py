"""Idempotent and transactional producers: errors that end them, ids that they lose, and waits without end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka import errors
from kafka.producer.transaction_manager import TransactionState

# --- A refused record that ends its producer ---

FATAL = (
    errors.ClusterAuthorizationFailedError, errors.TransactionalIdAuthorizationFailedError,
    errors.ProducerFencedError, errors.InvalidTxnStateError, errors.UnsupportedVersionError,
    errors.SaslAuthenticationFailedError,
)  # fmt: skip
"""Errors that another producer would have too."""
REFUSALS = (
    errors.MessageSizeTooLargeError, errors.RecordListTooLargeError, errors.InvalidRecordError,
    errors.InvalidTimestampError, errors.InvalidTopicError, errors.TopicAuthorizationFailedError,
    errors.PolicyViolationError, errors.UnknownTopicOrPartitionError,
)  # fmt: skip
"""Errors after which nothing of the batch is in the log."""


def go_on_after_refusals(producer: Any) -> None:
    """Let an idempotent producer go on after a batch that the broker refused; in a transaction, after its abort.

    After a refusal nothing of the batch is in the log, and only one batch of a partition is ever in flight (idempotent
    producers mute a partition meanwhile): the next one takes its sequence numbers. A batch that was sent before is
    different: that attempt may have been written, and the broker would drop the next batch as its repetition. Then, and
    if an error does not say whether anything was written, a new epoch is begun. In a transaction the client would leave
    a gap in the sequence numbers; here it is as above, or the producer is over and its owner makes another. Batches of
    the transaction that were not sent get an error of their own, with the refused one's for its cause.

    Wrong: an idempotent producer takes any error that is not worth a retry for the end: a record that is too large, a
        topic without the right to write. In its fatal state it answers all other batches with that error, also those
        in flight that may have been written. Kafka's Java client goes on.
    Goes when: ``classify_batch_error`` distinguishes refusals from the end.
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
            return otherwise  # the batch fails all the same, its time is over: a commit would go without it
        if found == manager.ERROR_CLASS_RETRIABLE or issubclass(kind, FATAL):
            return found
        if issubclass(kind, REFUSALS) and not batch.in_retry() and batch.has_sequence:
            manager.set_sequence_number(batch.topic_partition, batch.base_sequence)
            return goes_on
        return otherwise

    manager.classify_batch_error = decide


def _blame_one(accumulator: Any) -> None:
    """Give batches that are dropped because another one of their transaction was refused an error of their own."""
    stock = accumulator.abort_undrained_batches

    def abort(error: Any) -> None:
        if not isinstance(error, errors.TransactionAbortedError):
            cause, error = error, errors.TransactionAbortedError(str(error))
            error.__cause__ = cause
        stock(error)

    accumulator.abort_undrained_batches = abort


def is_over(producer: Any) -> bool:
    """Return whether a producer answers everything with the same error from now on."""
    manager = producer._transaction_manager
    return manager is not None and manager.has_fatal_error()


# --- A producer that loses its id and never gets another ---


def ask_for_another_id(producer: Any) -> None:
    """Let an idempotent producer that has dropped its id go on with another, or with another epoch.

    A new epoch is begun, as after other errors that do not say whether anything was written; if the brokers have no
    such request, the producer returns to its first state. In a transaction nothing is done: the producer is over.

    Wrong: when a batch that was sent before expires, an idempotent producer drops its id (``reset_producer_id``), to
        get a new one before it sends anything else. But it asks for one only in its first state, which is over: it
        sends nothing any more, expires nothing, and says nothing. In a transaction the same call raises in its thread.
    Goes when: ``reset_producer_id`` asks for a new id.
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


# --- A producer that a broker's silence ends for good ---


def ask_again_after_silence(producer: Any) -> None:
    """Let an idempotent or transactional producer ask again if a request got no answer.

    An error that passes (a time-out, a node that is not ready) counts as a broken connection.

    Wrong: if a request for a producer's id, or of a transaction, gets no answer in time (30 s), the producer is in its
        fatal state ("Could not execute transactional request for unknown reasons"): all batches fail, also those that
        other brokers would take. Only a connection that breaks lets it ask again.
    Goes when: ``TxnRequestHandler.on_complete`` asks again after retriable errors.
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


# --- Ends of transactions that are waited for without end ---


def end(producer: Any, *, commit: bool, timeout_s: float) -> None:
    """Commit or abort the open transaction.

    Wrong: ``commit_transaction``, ``abort_transaction`` and ``send_offsets_to_transaction`` wait for their answer
        without limit: a broker that is away holds the caller's thread. And only ``send`` adds a partition.
    Goes when: these methods take a time-out, as Java's do.

    Raises:
        KafkaTimeoutError: no answer: it may have taken effect, or may do so later.
        KafkaError: the brokers refuse, or the producer has failed.
    """
    manager = producer._transaction_manager
    _wait(producer, manager.begin_commit if commit else manager.begin_abort, timeout_s)


def send_offsets(producer: Any, offsets: Mapping[Any, Any], group: Any, timeout_s: float) -> None:
    """Make offsets of a consumer group part of the transaction; raises as :func:`end`."""
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
    """Return whether what a producer sends is part of transactions."""
    manager = producer._transaction_manager
    return manager is not None and bool(manager.is_transactional())


def identity(producer: Any) -> tuple[int, int]:
    """Return the id and the epoch under which the brokers know a transactional producer."""
    found = producer._transaction_manager.producer_id_and_epoch
    return found.producer_id, found.epoch


def add_partition(producer: Any, partition: Any) -> None:
    """Add a partition to the open transaction.

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
