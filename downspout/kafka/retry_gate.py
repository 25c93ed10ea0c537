"""Classify, describe and retry the client's errors.

:class:`RetryGate` never waits: it counts errors, warns once per period, and tells when to retry. :func:`answer_of` is
for commands: it retries for up to 30 s.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from kafka import errors

from downspout.clock import SYSTEM_CLOCK
from downspout.errors import BrokerError, MissingExtraError, TakenOverError, UnreadableError
from downspout.kafka.unreadable import UnreadableBatchError
from downspout.ledger.retry_schedule import Backoff

WARN_MS = 30_000  # Period in which a warning is not repeated

THROWN_OUT = (errors.CommitFailedError, errors.IllegalGenerationError, errors.UnknownMemberIdError)
"""The group has expelled this member; others own its partitions now."""
MEMBERSHIP = (*THROWN_OUT, errors.RebalanceInProgressError, errors.MemberIdRequiredError)
"""The group continues without this member. The next poll rejoins, and then reports its partitions."""


FORGOTTEN = (
    errors.OutOfOrderSequenceNumberError, errors.UnknownProducerIdError, errors.InvalidProducerIdMappingError,
    errors.DuplicateSequenceNumberError,
)  # fmt: skip
"""The brokers have lost or reject the producer's state; for example, an idle producer's id expires after a week."""


def may_pass(error: errors.KafkaError) -> bool:
    """Return whether a retry of a refused record may succeed, perhaps with another producer.

    kafka-python reports some refusals as a bare KafkaError.

    >>> may_pass(errors.KafkaTimeoutError()), may_pass(errors.KafkaError(errors.InvalidProducerIdMappingError()))
    (True, True)
    >>> may_pass(errors.MessageSizeTooLargeError())
    False
    """
    return type(error) is errors.KafkaError or isinstance(error, FORGOTTEN) or bool(error.retriable)


class LogThrottle:
    """Decides whether a warning may be repeated.

    >>> seldom = LogThrottle(30_000)
    >>> [seldom.due("slow", now) for now in (5, 30_004, 30_005)]
    [True, False, True]
    """

    def __init__(self, period_ms: int = WARN_MS) -> None:
        self._period_ms = period_ms
        self._said: dict[Hashable, int] = {}

    def due(self, what: Hashable, now: int) -> bool:
        """Return whether to warn about ``what`` now; if so, note the warning."""
        if what in self._said and now - self._said[what] < self._period_ms:
            return False
        self._said = {each: at for each, at in self._said.items() if now - at < self._period_ms}
        self._said[what] = now
        return True


class ErrorCount(Protocol):
    """Counts errors."""

    errors: int


class RetryGate:
    """Handles the client's errors for one kind of work; warns of each class of error once in ``warn_ms``."""

    def __init__(
        self, work: str, bootstrap: str, metrics: ErrorCount, log: logging.Logger, warn_ms: int = WARN_MS
    ) -> None:
        self._work = work
        self._bootstrap = bootstrap
        self._metrics = metrics
        self._log = log
        self._warn_ms = warn_ms
        self._throttle = LogThrottle(warn_ms)
        self.last_error = ""  # Empty: the last try succeeded
        self._in_a_row = 0
        self._since = 0
        self._not_before = 0
        self._backoff = Backoff(50, 2_000)

    def for_work(self, work: str) -> RetryGate:
        """Return a gate for other work with the same brokers."""
        return RetryGate(work, self._bootstrap, self._metrics, self._log, self._warn_ms)

    def waits(self, now: int) -> bool:
        """Return whether it is too early to retry."""
        return now < self._not_before

    def succeeded(self, now: int | None = None) -> None:
        """Reset the error count; given ``now``, log the recovery."""
        if now is not None and self._in_a_row > 1:
            seconds = (now - self._since) / 1000
            self._log.warning(
                "%s: %s works again, after %.1f s and %d errors", self._bootstrap, self._work, seconds, self._in_a_row
            )
        self.last_error = ""
        self._in_a_row = 0
        self._not_before = 0

    def record_error(self, error: Exception, now: int) -> None:
        """Count an error that may pass, and back off from ``now``, the time after it was raised.

        Raises:
            BrokerError: retrying is useless (UnreadableError: records cannot be read).
        """
        if isinstance(error, errors.UnsupportedCodecError):
            raise MissingExtraError(
                f"{self._bootstrap}: {self._work} failed: {describe(error)}", cure="`pip install 'downspout[codecs]'`"
            ) from error
        if isinstance(error, errors.FencedInstanceIdError):
            raise TakenOverError(
                f"another process has taken over: it is this member of the group now ({self._work})",
                cure="nothing, if the takeover was intended; otherwise another kafka.group for a second copy of the "
                "records, its own --member N for each process that shares them, or one run with --workers N",
            ) from error
        if not (getattr(error, "retriable", False) or isinstance(error, MEMBERSHIP)):
            kind = UnreadableError if isinstance(error, UnreadableBatchError) else BrokerError
            raise kind(
                f"{self._bootstrap}: {self._work} failed: {describe(error)}",
                cure=cure_of(error, "check the broker's log and the permissions of this client"),
            ) from error
        self._metrics.errors += 1
        self.last_error = describe(error)
        self._in_a_row += 1
        self._since = now if self._in_a_row == 1 else self._since
        self._not_before = now + self._backoff.delay(self._in_a_row)
        if self._throttle.due(type(error).__name__, now):
            lasted = f" for {(now - self._since) / 1000:.1f} s, {self._in_a_row} times," if self._in_a_row > 1 else ","
            work = f"{self._bootstrap}: {self._work}"
            self._log.warning("%s failed%s retrying: %s", work, lasted, describe(error))


LOGIN = (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError, errors.IllegalSaslStateError)
DENIED = {errors.TopicAuthorizationFailedError: "topic", errors.GroupAuthorizationFailedError: "group"}


def describe(error: BaseException) -> str:
    """Return an error's class and message in one line; for a missing permission, name its object.

    >>> describe(ValueError("no")), describe(KeyError()), describe(errors.KafkaTimeoutError(None))
    ('ValueError: no', 'KeyError', 'KafkaTimeoutError')
    >>> describe(errors.TopicAuthorizationFailedError({"orders"}))
    'no permission for topic orders (TopicAuthorizationFailedError)'
    """
    name = type(error).__name__
    if type(error) in DENIED and error.args:
        given = error.args[0]
        names = given if isinstance(given, set | frozenset | list | tuple) else [given]
        return f"no permission for {DENIED[type(error)]} {', '.join(sorted(map(str, names)))} ({name})"
    text = re.sub(r"\A\[Error -?\d+\] |: None\Z", "", " ".join(str(error).split()))
    return text if text.startswith(name) else f"{name}: {text}" if text else name


def cure_of(error: BaseException, otherwise: str) -> str:
    """Return a cure for an error, or ``otherwise``.

    >>> cure_of(errors.IncompatibleBrokerVersion(), "wait")
    'leave kafka.client.api_version out: the client asks the brokers for theirs; or newer brokers'
    """
    if isinstance(error, LOGIN):
        return "kafka.client.sasl_plain_username and sasl_plain_password: they may have changed since the start"
    if isinstance(error, UnreadableBatchError):
        return error.cure
    if isinstance(error, errors.CorruptRecordError):
        return "check the broker's log and its disk: it cannot read a batch; another replica may have it whole"
    if isinstance(error, errors.IncompatibleBrokerVersion):
        return "leave kafka.client.api_version out: the client asks the brokers for theirs; or newer brokers"
    kind = DENIED.get(type(error))
    return f"grant the {kind} to this client (an ACL of the broker)" if kind else otherwise


# --- Retries of commands ---


ANSWER_S_MAX = 30.0
AGAIN_S = 0.5

Answer = TypeVar("Answer")


def answer_of(question: Callable[[], Answer], what: str) -> Answer:
    """Return Kafka's answer; retry errors that may pass for up to 30 s.

    >>> answer_of(lambda: 42, "the lag of group orders")
    42
    """
    deadline = SYSTEM_CLOCK.monotonic() + ANSWER_S_MAX
    while True:
        try:
            return question()
        except errors.KafkaError as error:
            if not error.retriable or SYSTEM_CLOCK.monotonic() >= deadline:
                cure = "try again when the brokers are up; `downspout kafka status` shows the local one"
                raise BrokerError(
                    f"Kafka did not report {what}: {describe(error)}", cure=cure_of(error, cure)
                ) from error
        SYSTEM_CLOCK.sleep(AGAIN_S)
