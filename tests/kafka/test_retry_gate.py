"""Messages about temporary errors."""

from __future__ import annotations

import logging

import pytest
from kafka import errors

from downspout.errors import MissingExtraError
from downspout.kafka import RetryGate
from downspout.spout import SpoutMetrics

LOG = logging.getLogger("tests.patience")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_row_of_errors_tells_how_long_it_has_lasted(caplog: pytest.LogCaptureFixture) -> None:
    """The first is warned of at once, later ones of its kind every 30 s with time and number, and so is the end."""
    gate = RetryGate("commit", "here:9", SpoutMetrics(), LOG)
    for now in range(1_000, 62_000, 10_000):
        gate.record_error(errors.KafkaTimeoutError("slow"), now)
    gate.succeeded(70_500)
    assert said(caplog) == [
        "here:9: commit failed, retrying: KafkaTimeoutError: slow",
        "here:9: commit failed for 30.0 s, 4 times, retrying: KafkaTimeoutError: slow",
        "here:9: commit failed for 60.0 s, 7 times, retrying: KafkaTimeoutError: slow",
        "here:9: commit works again, after 69.5 s and 7 errors",
    ]


def test_one_error_alone_has_no_end_to_tell_of(caplog: pytest.LogCaptureFixture) -> None:
    """After a single error, and where nothing had failed, success is no news; the next row counts from its start."""
    gate = RetryGate("poll", "here:9", SpoutMetrics(), LOG)
    gate.succeeded(5)
    gate.record_error(errors.KafkaTimeoutError("slow"), 10)
    gate.succeeded(20)
    gate.record_error(errors.NodeNotReadyError("gone"), 40_000)
    gate.record_error(errors.NodeNotReadyError("gone"), 41_000)
    gate.succeeded(42_000)
    assert said(caplog)[-1] == "here:9: poll works again, after 2.0 s and 2 errors"
    assert len(said(caplog)) == 3


def test_a_codec_that_is_not_installed_names_the_extra() -> None:
    """Compressed records that no installed package can read end the run, with the extra that brings the package."""
    gate = RetryGate("poll", "here:9", SpoutMetrics(), LOG)
    with pytest.raises(MissingExtraError, match=r"here:9: poll failed: .*snappy") as raised:
        gate.record_error(errors.UnsupportedCodecError("Libraries for snappy compression codec not found"), 5)
    assert "downspout[codecs]" in raised.value.cure
