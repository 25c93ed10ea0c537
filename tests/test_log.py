"""The log that a test reads contains only the test's own lines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="module")
def older_client() -> Iterator[Callable[[], None]]:
    """A thread as a client of kafka-python has one, started before the test, that writes a line when it is told to."""
    go, told = threading.Event(), threading.Event()

    def talk() -> None:
        go.wait()
        logging.getLogger("kafka.cluster").error("Topic orders not found in cluster metadata")
        told.set()

    thread = threading.Thread(target=talk, name="kafka-io-older", daemon=True)
    thread.start()

    def tell() -> None:
        go.set()
        assert told.wait(60)

    yield tell
    go.set()
    thread.join()


def test_what_an_older_client_says_is_not_in_a_tests_log(
    older_client: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A client that lived before the test writes its lines elsewhere; the test's own lines are there."""
    older_client()
    logging.getLogger("kafka.cluster").error("of the test")
    assert caplog.messages == ["of the test"]
