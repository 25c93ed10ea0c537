"""Errors that say what is wrong, where, and what to do about it.

Every error that a user can cause or must act on is a :class:`DownspoutError`. Its text names the culprit and its
coordinates, and ends in a cure. The command line prints that text and no traceback, and exits with
:attr:`DownspoutError.exit_code`; any other exception is a bug and shows its traceback.
"""

from __future__ import annotations

from typing import Any, TypeAlias


class DownspoutError(Exception):
    """Base of all errors that are meant for a user.

    Args:
        message: what is wrong, with the culprit and its coordinates: ``orders[3]@918: value is not JSON``.
        cure: one thing to try, as an imperative sentence without the word "Try".

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
        """Return the error as ``--json`` has it.

        >>> ConfigError("kafka.topics is not set", cure="kafka.topics=orders").as_dict()["error"]["exit_code"]
        2
        """
        kind = {"type": type(self).__name__, "message": self.message, "cure": self.cure}
        return {"error": {**kind, "exit_code": self.exit_code}}


class ConfigError(DownspoutError):
    """A setting is unknown, malformed, out of range or contradicts another."""

    exit_code = 2


class TopologyError(DownspoutError):
    """A topology cannot be loaded or is wired wrongly."""

    exit_code = 2


class MissingExtraError(DownspoutError):
    """An optional dependency, or a program such as Java, is not installed."""

    exit_code = 3


class BrokerError(DownspoutError):
    """Kafka cannot be started, reached or used."""

    exit_code = 4


class SilentBrokersError(BrokerError):
    """No broker answers now. That passes: what runs tries again."""


class TakenOverError(BrokerError):
    """Another process has taken this one's place: in the consumer group, or as the owner of offsets, batches or a
    transactional id. To try again would throw that one out."""

    exit_code = 14


class UnreadableError(BrokerError):
    """Kafka cannot give records whole: they are damaged or too large. To try again does not help."""


class RecordError(DownspoutError):
    """A record could not be processed; the message starts with its coordinates."""

    exit_code = 5


class UnavailableError(RecordError):
    """A service that a component needs for a record, such as a schema registry, cannot be reached now.

    The tuple fails, and the spout tries the record again for as long as it takes: no attempt is counted.
    """


class DataLossError(DownspoutError):
    """Records that should be there are gone from Kafka (retention, truncation, a re-created topic)."""

    exit_code = 6


class SinkError(DownspoutError):
    """A sink cannot write, or its directory is not what its log says."""

    exit_code = 7


class StoreAwayError(SinkError):
    """A sink's store cannot take rows now: it does not answer, is full, or is locked. To try again helps, some time.

    Args:
        state: what is the matter with it, after its name: "has been full".
        why: the store's own words, or who holds it.
    """

    def __init__(self, message: str, *, cure: str | None = None, state: str = "", why: str = "") -> None:
        super().__init__(message, cure=cure)
        self.state, self.why = state, why


class ComponentError(DownspoutError):
    """A spout or bolt raised, and the run cannot go on. Names component, task and tuple."""

    exit_code = 8


class StormError(DownspoutError):
    """Storm cannot be started, reached or used."""

    exit_code = 9


class SparkError(DownspoutError):
    """Spark, or a process of it, has ended, and the run with it."""

    exit_code = 9


class RunsAlready(StormError):
    """The Storm that is to be started runs."""


UserError: TypeAlias = Exception | SystemExit
"""What a user's code may raise. ``SystemExit`` is how argparse, click and other libraries say that an input is wrong:
inside a component that is an error like any other, and not the end of the process."""
USER_ERRORS = (Exception, SystemExit)


def coordinates(topic: str, partition: int, offset: int | None = None) -> str:
    """Name a place in Kafka the way all messages do.

    >>> coordinates("orders", 3, 918)
    'orders[3]@918'
    >>> coordinates("orders", 3)
    'orders[3]'
    """
    place = f"{topic}[{partition}]"
    return place if offset is None else f"{place}@{offset}"
