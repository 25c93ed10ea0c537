"""A producer after a refused batch: it continues its sequence numbers, starts again, or ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors
from kafka.producer.transaction_manager import ProducerIdAndEpoch, TransactionManager, TransactionState

from downspout.kafka.patches.transactional import FATAL, REFUSALS, ask_for_another_id, go_on_after_refusals

BUMP, RESET = TransactionManager.ERROR_CLASS_NEEDS_EPOCH_BUMP, TransactionManager.ERROR_CLASS_NEEDS_PRODUCER_ID_RESET
RETRIABLE, ABORTABLE = TransactionManager.ERROR_CLASS_RETRIABLE, TransactionManager.ERROR_CLASS_ABORTABLE
FATALLY = TransactionManager.ERROR_CLASS_FATAL
BASE, NEXT = 40, 45


class Scene:
    """A producer that has sent a batch of 5 records."""

    def __init__(self, transactional: bool = False, version: tuple[int, int] = (4, 3)) -> None:
        self.manager = TransactionManager(transactional_id="id" if transactional else None, api_version=version)
        self.manager.set_sequence_number("tp", NEXT)
        accumulator = SimpleNamespace(abort_undrained_batches=lambda error: None)
        go_on_after_refusals(SimpleNamespace(_transaction_manager=self.manager, _accumulator=accumulator))

    def decide(self, error: Any, *, again: bool = False) -> tuple[str, int]:
        """Return what is done about an error, and the number that the next batch takes."""
        batch = SimpleNamespace(in_retry=lambda: again, has_sequence=True, base_sequence=BASE, topic_partition="tp")
        return str(self.manager.classify_batch_error(error, batch)), self.manager.sequence_number("tp")


@pytest.mark.parametrize("kind", REFUSALS)
def test_the_next_batch_takes_the_numbers_of_one_that_was_refused(kind: Any) -> None:
    """Nothing of it is in the log: in a transaction, that is aborted first."""
    if not issubclass(kind, errors.RetriableError):
        assert Scene().decide(kind("no")) == (RETRIABLE, BASE)
        assert Scene(transactional=True).decide(kind("no")) == (ABORTABLE, BASE)


@pytest.mark.parametrize("error", [errors.MessageSizeTooLargeError, errors.InvalidRecordError])
def test_a_batch_that_was_sent_before_gives_its_numbers_to_no_other(error: Any) -> None:
    """Its first attempt may be in the log: the broker would take the next batch for a repetition, and drop it."""
    assert Scene().decide(error("no"), again=True) == (BUMP, NEXT)
    assert Scene(version=(2, 0)).decide(error("no"), again=True) == (RESET, NEXT)
    assert Scene(transactional=True).decide(error("no"), again=True) == (FATALLY, NEXT)


def test_an_error_that_does_not_tell_what_was_written_begins_anew() -> None:
    """With a new epoch; in a transaction the producer is over."""
    assert Scene().decide(errors.UnknownError("?")) == (BUMP, NEXT)
    assert Scene().decide(errors.OutOfOrderSequenceNumberError("?")) == (BUMP, NEXT)
    assert Scene(transactional=True).decide(errors.UnknownError("?")) == (FATALLY, NEXT)


@pytest.mark.parametrize("kind", FATAL)
def test_what_any_producer_would_meet_is_fatal(kind: Any) -> None:
    """No right to write, or another producer in this one's place."""
    assert Scene().decide(kind("no"))[0] == FATALLY


def test_a_time_out_changes_no_numbers() -> None:
    """The client deals with those itself."""
    assert Scene().decide(errors.KafkaTimeoutError("late")) == (RETRIABLE, NEXT)


def test_a_transaction_is_not_committed_without_a_record_that_was_given_up() -> None:
    """A batch whose time is over ends a transactional producer, and no other."""
    expired = errors.KafkaTimeoutError("Expiring 1 record(s)")
    assert Scene().decide(expired) == (RETRIABLE, NEXT)
    assert Scene(transactional=True).decide(expired) == (FATALLY, NEXT)


@pytest.mark.parametrize("version", [(4, 3), (2, 0)])
def test_a_producer_that_drops_its_id_asks_for_another(version: tuple[int, int]) -> None:
    """As it does when a batch expires that was sent before: the client itself would send nothing any more."""
    manager = TransactionManager(api_version=version)
    ask_for_another_id(SimpleNamespace(_transaction_manager=manager))
    manager.init_producer_id()
    manager.next_request_handler(has_incomplete_batches=False)
    manager.set_producer_id_and_epoch(ProducerIdAndEpoch(7, 0))
    manager._transition_to(TransactionState.READY)
    manager.reset_producer_id()
    if not manager.has_producer_id():  # then the client's loop calls this
        manager.init_producer_id()
    assert manager.next_request_handler(has_incomplete_batches=False) is not None


def test_in_a_transaction_the_producer_is_over_instead() -> None:
    """The client's thread goes on: it has batches to answer."""
    manager = TransactionManager(transactional_id="id", api_version=(4, 3))
    ask_for_another_id(SimpleNamespace(_transaction_manager=manager))
    manager.reset_producer_id()
