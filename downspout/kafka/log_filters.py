"""Filters for kafka-python's log: lines that a user cannot act on are dropped, and secrets are masked.

A line is recognised by its logger and its text. At DEBUG kafka-python logs the properties
of an administrator's client, each request, and each byte that it sends: a password would be in all three.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kafka.errors import Cancelled, UnstableOffsetCommitError

from downspout.settings.secrets import shown

SLOW = "kafka.net.selector"
"""Measures how long a step of its loop took, and warns from 0.1 s on: a busy machine is enough for that."""
AT_CLOSE = {"kafka.cluster": "Metadata refresh: failed ", "kafka.producer.sender": "Error sending produce request"}
"""What a request logs that is in flight when its client is closed. A record's own future tells its fate, and
:class:`~downspout.kafka.producer.KafkaProducerPort` raises it."""
GIVEN_UP = "has not answered for"
"""Of a connection that we close; ``downspout.outages`` has reported it in one line instead of four."""
CONNECTIONS = ("kafka.net.transport", "kafka.net.connection", "kafka.consumer.fetcher", "kafka.producer.sender")
TIMED_OUT = ("Abort ([Error 7] RequestTimedOutError", "Connection lost: [Error 7] RequestTimedOutError")
"""Repeat, as errors, the warning of the line before them: a request has timed out, and its connection is closed."""
UNSTABLE = "kafka.coordinator.consumer"
"""Logs an offset that a transaction is about to commit as an unknown error, and asks again."""
BYTES = "kafka.protocol.parser"
TALKING = (BYTES, "kafka.net.connection", "kafka.admin.client")
"""Loggers that receive whole requests, answers and properties."""


def install() -> None:
    """Filter at the loggers, for every handler. A second call changes nothing."""
    for name in {SLOW, UNSTABLE, *AT_CLOSE, *CONNECTIONS}:
        logging.getLogger(name).addFilter(is_news)
    for name in TALKING:
        logging.getLogger(name).addFilter(cover)


def cover(record: logging.LogRecord) -> bool:
    """Mask secrets in a log record; return whether to show it."""
    if record.name == BYTES and str(record.msg).endswith(" %r"):
        return False  # bytes as they are sent, and as they come
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
