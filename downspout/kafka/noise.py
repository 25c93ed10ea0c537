"""Lines of kafka-python's log that are filtered: those that a user cannot act on, and secrets.

Each is left out, or covered, by its logger and its text, and nothing else is. At DEBUG kafka-python logs the properties
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
"""What a request says that is out when its client is closed. What the answer would have meant for a record is told
by the record's own future: :class:`~downspout.kafka.producer.KafkaProducerPort` raises it."""
GIVEN_UP = "has not answered for"
"""Of a connection that we give up; ``downspout.outages`` has said so, in one line and not in four."""
HEARING = ("kafka.net.transport", "kafka.net.connection", "kafka.consumer.fetcher", "kafka.producer.sender")
UNSTABLE = "kafka.coordinator.consumer"
"""Calls an offset that a transaction is about to commit an unknown error; it is asked for again."""
BYTES = "kafka.protocol.parser"
TALKING = (BYTES, "kafka.net.connection", "kafka.admin.client")
"""Loggers that are given requests, answers and properties whole."""


def leave_out() -> None:
    """Filter at the loggers, whatever handles them. A second call changes nothing."""
    for name in {SLOW, UNSTABLE, *AT_CLOSE, *HEARING}:
        logging.getLogger(name).addFilter(is_news)
    for name in TALKING:
        logging.getLogger(name).addFilter(cover)


def cover(record: logging.LogRecord) -> bool:
    """Take secrets out of a log record; return whether to show what is left."""
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
    if record.name in HEARING and GIVEN_UP in record.getMessage():
        return False
    said = AT_CLOSE.get(record.name)
    return said is None or said not in str(record.msg) or not _is_cancelled(record.args)


def _is_cancelled(args: Any) -> bool:
    error = args[-1] if isinstance(args, tuple) and args else None
    return isinstance(error, Cancelled) or error is Cancelled
