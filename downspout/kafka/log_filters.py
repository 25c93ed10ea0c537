"""Filter kafka-python's log: drop lines that a user cannot act on, and mask secrets.

A line is recognised by its logger and its text. At DEBUG kafka-python logs an admin client's properties, each request,
and each byte it sends: all three can contain a password.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kafka.errors import Cancelled, UnstableOffsetCommitError

from downspout.settings.secrets import shown

SLOW = "kafka.net.selector"
"""Warns if a step of its loop takes more than 0.1 s, as happens on a busy machine."""
AT_CLOSE = {"kafka.cluster": "Metadata refresh: failed ", "kafka.producer.sender": "Error sending produce request"}
"""Logged for a request in flight when its client is closed. A record's own future holds the error, and
:class:`~downspout.kafka.producer.KafkaProducerPort` raises it."""
GIVEN_UP = "has not answered for"
"""Logged four times when we close a silent connection; ``downspout.outages`` has reported it in one line."""
CONNECTIONS = ("kafka.net.transport", "kafka.net.connection", "kafka.consumer.fetcher", "kafka.producer.sender")
TIMED_OUT = ("Abort ([Error 7] RequestTimedOutError", "Connection lost: [Error 7] RequestTimedOutError")
"""Repeat, as errors, the preceding warning: a request has timed out, and its connection is closed."""
UNSTABLE = "kafka.coordinator.consumer"
"""Logs an offset in an open transaction as an unknown error, and asks again."""
BYTES = "kafka.protocol.parser"
TALKING = (BYTES, "kafka.net.connection", "kafka.admin.client")
"""Loggers of whole requests, responses and properties."""


def install() -> None:
    """Install the filters on the loggers, for every handler. Idempotent."""
    for name in {SLOW, UNSTABLE, *AT_CLOSE, *CONNECTIONS}:
        logging.getLogger(name).addFilter(is_news)
    for name in TALKING:
        logging.getLogger(name).addFilter(cover)


def cover(record: logging.LogRecord) -> bool:
    """Mask secrets in a log record; return whether to show it."""
    if record.name == BYTES and str(record.msg).endswith(" %r"):
        return False  # bytes sent and received
    if isinstance(record.args, Mapping):
        record.args = {str(name): shown(str(name), value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(_covered(value) for value in record.args)
    return True


def _covered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: shown(str(name), each) for name, each in value.items()}
    name = type(value).__name__
    return name if name.startswith("Sasl") else value


def is_news(record: logging.LogRecord) -> bool:
    """Return whether to show a record."""
    if record.name == SLOW:
        return "blocking the event loop" not in str(record.msg)
    if record.name == UNSTABLE:
        return not any(isinstance(value, UnstableOffsetCommitError) for value in record.args or ())
    if record.name in CONNECTIONS and any(words in record.getMessage() for words in (GIVEN_UP, *TIMED_OUT)):
        return False
    said = AT_CLOSE.get(record.name)
    return said is None or said not in str(record.msg) or not _is_cancelled(record.args)


def _is_cancelled(args: Any) -> bool:
    error = args[-1] if isinstance(args, tuple) and args else None
    return isinstance(error, Cancelled) or error is Cancelled
