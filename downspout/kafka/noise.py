"""What kafka-python logs and nobody can act on: each left out by its logger and its text, and nothing else."""

from __future__ import annotations

import logging
from typing import Any

from kafka.errors import Cancelled

__all__ = ["leave_out"]

SLOW = "kafka.net.selector"
"""Measures how long a step of its loop took, and warns from 0.1 s on: a busy machine is enough for that."""
AT_CLOSE = {"kafka.cluster": "Metadata refresh: failed ", "kafka.producer.sender": "Error sending produce request"}
"""What a request says that is out when its client is closed. What the answer would have meant for a record is told
by the record's own future: :class:`~downspout.kafka.producer.KafkaProducerPort` raises it."""


def leave_out() -> None:
    """Filter it at its loggers, whoever shows the log. A second call changes nothing."""
    for name in (SLOW, *AT_CLOSE):
        logging.getLogger(name).addFilter(is_news)


def is_news(record: logging.LogRecord) -> bool:
    """Return whether to show a record."""
    if record.name == SLOW:
        return "blocking the event loop" not in str(record.msg)
    said = AT_CLOSE.get(record.name)
    return said is None or said not in str(record.msg) or not _is_cancelled(record.args)


def _is_cancelled(args: Any) -> bool:
    error = args[-1] if isinstance(args, tuple) and args else None
    return isinstance(error, Cancelled) or error is Cancelled
