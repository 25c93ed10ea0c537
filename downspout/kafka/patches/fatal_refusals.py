"""A refused record that ends its producer.

Wrong: an idempotent producer takes any error of a batch that is not worth another try for the end: a record that is
    too large, a topic without the right to write. It is in its fatal state then, and all other batches, also those
    that are on their way and may have been written, are answered with that error. Kafka's Java client goes on.
Patch: which errors are fatal is decided here. After a refusal nothing of the batch is in the log, and only one batch
    of a partition is ever on its way (idempotent producers mute a partition meanwhile). So the next one takes the
    refused one's sequence numbers. Not where the batch had been sent before: that attempt may have been written, and
    the broker would take the next batch for its repetition and drop it. Then, and where an error does not say whether
    anything was written, a new epoch is begun. In a transaction the client leaves a gap in the sequence numbers, over
    which the next one stumbles; here it is as above, and otherwise the producer is over, and its owner makes another.
    There, the client answers batches that it did not send yet with the error of the one that was refused; here with
    one of their own, which has that for its cause.
Self-test: what classifies an error, the sequence numbers, and whether an epoch can be begun.
Since: 3.0.12 was read.
Goes when: ``classify_batch_error`` tells refusals from the end.
"""

from __future__ import annotations

from typing import Any

from kafka import errors

IDEMPOTENT = {
    "producer._transaction_manager.classify_batch_error": "method",
    "producer._transaction_manager.set_sequence_number": "method",
    "producer._transaction_manager._supports_epoch_bump": "method",
    "producer._transaction_manager.has_fatal_error": "method",
    "producer._transaction_manager.is_transactional": "method",
    "producer._transaction_manager.ERROR_CLASS_RETRIABLE": "str",
    "producer._transaction_manager.ERROR_CLASS_FATAL": "str",
    "producer._transaction_manager.ERROR_CLASS_ABORTABLE": "str",
    "producer._transaction_manager.ERROR_CLASS_NEEDS_EPOCH_BUMP": "str",
    "producer._transaction_manager.ERROR_CLASS_NEEDS_PRODUCER_ID_RESET": "str",
    "producer._accumulator.abort_undrained_batches": "method",
    "batch.in_retry": "method",
    "batch.has_sequence": "bool",
}
"""What an idempotent producer must have."""

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
    """Let an idempotent producer go on after a batch that the broker has refused; in a transaction, after its abort."""
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
    """Let batches that are dropped because another one of their transaction was refused have an error of their own."""
    stock = accumulator.abort_undrained_batches

    def abort(error: Any) -> None:
        if not isinstance(error, errors.TransactionAbortedError):
            cause, error = error, errors.TransactionAbortedError(str(error))
            error.__cause__ = cause
        stock(error)

    accumulator.abort_undrained_batches = abort


def is_over(producer: Any) -> bool:
    """Return whether a producer answers all that is sent with the same error from now on."""
    manager = producer._transaction_manager
    return manager is not None and manager.has_fatal_error()
