"""Errors for users: the problem, its location, and a hint.

Every error that a user can cause or must act on is a :class:`DownspoutError`. Its text names the bad item and its
coordinates, and ends with a hint. The command line prints that text without a traceback, and exits with
:attr:`DownspoutError.exit_code`; any other exception is a bug and shows its traceback.
"""

from __future__ import annotations

from typing import Any, TypeAlias


class DownspoutError(Exception):
    """Base of all errors for users.

    Args:
        message: the problem, with the bad item's coordinates: ``orders[3]@918: value is not JSON``.
        cure: a hint, to follow the word "Try:".

    >>> str(DownspoutError("orders[3]@918: value is not JSON", cure="look at it with `downspout kafka show`"))
    'orders[3]@918: value is not JSON. Try: look at it with `downspout kafka show`'
    >>> str(DownspoutError("orders is not read: is it another query's?", cure="another checkpoint"))
    "orders is not read: is it another query's? Try: another checkpoint"
    """

    exit_code = 1

    def __init__(self, message: str, *, cure: str | None = None) -> None:
        self.message = message
        self.cure = cure
        sentence = message if message.endswith(("?", ".")) else f"{message}."
        super().__init__(f"{sentence} Try: {cure}" if cure else message)

    def as_dict(self) -> dict[str, Any]:
        """Return the error for ``--json``.

        >>> ConfigError("kafka.topics is not set", cure="kafka.topics=orders").as_dict()["error"]["exit_code"]
        2
        """
        kind = {"type": type(self).__name__, "message": self.message, "cure": self.cure}
        return {"error": {**kind, "exit_code": self.exit_code}}


class ConfigError(DownspoutError):
    """A setting is unknown, malformed, out of range, or contradicts another."""

    exit_code = 2


class TopologyError(DownspoutError):
    """A topology cannot be loaded, or its graph is wrong."""

    exit_code = 2


class MissingExtraError(DownspoutError):
    """An optional dependency, or a program such as Java, is not installed."""

    exit_code = 3


class BrokerError(DownspoutError):
    """Kafka cannot be started, reached or used."""

    exit_code = 4


class SilentBrokersError(BrokerError):
    """No broker answers now. This is temporary, and callers retry."""


class TakenOverError(BrokerError):
    """Another process has replaced this one: in the consumer group, or as owner of offsets, batches or a transactional
    id. A retry would evict that process."""

    exit_code = 14


class UnreadableError(BrokerError):
    """Kafka cannot return records in full: they are damaged or too large. A retry does not help."""


class RecordError(DownspoutError):
    """A record could not be processed; the message starts with its coordinates."""

    exit_code = 5


class UnavailableError(RecordError):
    """A service that a component needs for a record, such as a schema registry, is unavailable.

    The tuple fails, and the spout retries the record without limit: no attempt is counted.
    """


class DataLossError(DownspoutError):
    """Unprocessed records are gone from Kafka (retention, truncation, a recreated topic)."""

    exit_code = 6


class SinkError(DownspoutError):
    """A sink cannot write, or its directory does not match its log."""

    exit_code = 7


class StoreAwayError(SinkError):
    """A sink's store is unavailable, full or locked; a later retry may succeed.

    Args:
        state: its condition, as text to follow its name: "has been full".
        why: the store's own message, or the holder of the lock.
    """

    def __init__(self, message: str, *, cure: str | None = None, state: str = "", why: str = "") -> None:
        super().__init__(message, cure=cure)
        self.state, self.why = state, why


class ComponentError(DownspoutError):
    """A spout or bolt raised, and the run cannot continue. Names component, task and tuple."""

    exit_code = 8


class StormError(DownspoutError):
    """Storm cannot be started, reached or used."""

    exit_code = 9


class SparkError(DownspoutError):
    """Spark, or one of its processes, has ended, and so has the run."""

    exit_code = 9


class RunsAlready(StormError):
    """The Storm to be started is already running."""


UserError: TypeAlias = Exception | SystemExit
"""Exceptions from users' code. argparse, click and other libraries raise ``SystemExit`` for invalid input: inside a
component, it is an error like any other, and does not end the process."""
USER_ERRORS = (Exception, SystemExit)


def coordinates(topic: str, partition: int, offset: int | None = None) -> str:
    """Format a partition or record as in all messages.

    >>> coordinates("orders", 3, 918)
    'orders[3]@918'
    >>> coordinates("orders", 3)
    'orders[3]'
    """
    place = f"{topic}[{partition}]"
    return place if offset is None else f"{place}@{offset}"
