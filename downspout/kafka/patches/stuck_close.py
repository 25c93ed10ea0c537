"""A close that leaves its thread alive for ever.

Wrong: ``close`` begins with a flush, and one that times out ends the close there: the producer's thread stays, and
    goes on trying.
Patch: the thread is ended first; what it has not sent is dropped. The producer is marked as closed where ``close``
    does not come to it.
Self-test: the thread can be ended and waited for, and the mark.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: ``close`` ends the thread also when its flush has timed out.
"""

from __future__ import annotations

from typing import Any

from kafka import errors

PRODUCER = {"producer._sender.force_close": "method", "producer._sender.join": "method", "producer._closed": "bool"}

JOIN_S = 1.0


def abandon(producer: Any) -> None:
    """Release a producer at once, with all that it has not sent."""
    producer._sender.force_close()
    producer._sender.join(JOIN_S)
    try:
        producer.close(timeout=0)
    except errors.KafkaTimeoutError:
        producer._closed = True
