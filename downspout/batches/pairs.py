"""Which batches and states are exactly once together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from downspout.errors import ConfigError
from downspout.settings.table import SETTINGS

OTHERS = "a batch that comes again may hold other records"
AGAIN = "a batch that comes again is applied again"
NOT_EXACT = {
    ("opaque", "transactional"): OTHERS,
    ("opaque", "non_transactional"): AGAIN,
    ("transactional", "non_transactional"): AGAIN,
}
"""``batch.kind`` and ``state.kind`` → why they are not exactly once. All other pairs are."""


def check_pair(conf: Mapping[str, Any]) -> None:
    """Raise a ConfigError where a state would not hold each record exactly once, and nobody has allowed that.

    >>> check_pair({"batch.kind": "opaque", "state.kind": "opaque"})
    >>> check_pair({"batch.kind": "opaque", "state.kind": "transactional"})
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: batch.kind = opaque with state.kind = transactional is not exactly once: a batch \
that comes again may hold other records. Try: state.kind=opaque; or state.exactly_once=False, if counts may be wrong
    """
    batch, state = (
        SETTINGS[key].parse(conf.get(key, SETTINGS[key].default), "topology") for key in ("batch.kind", "state.kind")
    )
    is_allowed = SETTINGS["state.exactly_once"].parse(conf.get("state.exactly_once", True), "topology") is False
    why = NOT_EXACT.get((batch, state))
    if why is not None and not is_allowed:
        raise ConfigError(
            f"batch.kind = {batch} with state.kind = {state} is not exactly once: {why}",
            cure="state.kind=opaque; or state.exactly_once=False, if counts may be wrong",
        )
