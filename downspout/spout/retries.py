"""How often, and how soon, a spout tries a record again: the settings ``kafka.retry_…`` and ``kafka.retries_max``.

Whether a record that failed is tried again is decided in :mod:`downspout.spout.emit.settling`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from downspout.errors import USER_ERRORS, ConfigError
from downspout.ledger.retry_schedule import FOR_EVER, Backoff, RetryPolicy
from downspout.settings.import_path import load

DELAY_MS_MAX = 86_400_000  # As of the settings


def retries_of(retries_max: int) -> int:
    """Return how many retries a record has, as a number that can be compared: -1 is for ever.

    >>> retries_of(3), retries_of(-1) == FOR_EVER
    (3, True)
    """
    return FOR_EVER if retries_max < 0 else retries_max


def policy_of(settings: Mapping[str, Any], log: logging.Logger) -> RetryPolicy:
    """Return what says how long a record waits for its retry.

    Raises:
        ConfigError: ``kafka.retry_policy`` is no function of a number.
    """
    backoff = Backoff(settings["retry_delay_ms"], settings["retry_delay_ms_max"])
    path = settings["retry_policy"]
    return UserPolicy(path, policy_function(path), backoff, log) if path else backoff


def policy_function(path: str) -> Callable[[int], Any]:
    """Return the function that ``kafka.retry_policy`` names.

    Raises:
        ConfigError: there is none at that path, or it does not take a number alone.
    """
    function = load("kafka.retry_policy", path)
    try:
        inspect.signature(function).bind(1)
    except TypeError:
        raise ConfigError(
            f"kafka.retry_policy: {path} cannot be called with a number alone", cure="failures -> milliseconds"
        ) from None
    except ValueError:  # some functions that are written in C do not say what they take
        pass
    return function  # type: ignore[no-any-return]


class UserPolicy:
    """A policy of the user's. Where that fails, the settings hold: it must not stop what takes fails."""

    def __init__(self, path: str, function: Callable[[int], Any], backoff: RetryPolicy, log: logging.Logger) -> None:
        self._path = path
        self._function = function
        self._backoff = backoff
        self._log = log
        self._said: set[type[BaseException]] = set()

    def delay(self, failures: int) -> int:
        """Return the wait in ms after ``failures`` failures in all."""
        try:
            made = self._function(max(1, failures))
            if isinstance(made, bool) or not isinstance(made, int | float) or not 0 <= made <= DELAY_MS_MAX:
                raise ValueError(f"it returned {made!r}, which is no number of milliseconds up to {DELAY_MS_MAX:,}")
        except USER_ERRORS as error:
            if type(error) not in self._said:
                self._said.add(type(error))
                self._log.error(
                    "kafka.retry_policy: %s(%d): %s; kafka.retry_delay_ms holds instead. Try: failures -> milliseconds",
                    self._path, failures, error,
                )  # fmt: skip
            return self._backoff.delay(failures)
        return int(made)
