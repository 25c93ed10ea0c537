"""Properties that are compatible with idempotence, and those that turn it off."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from downspout.errors import ConfigError
from downspout.kafka import producer_properties


@pytest.mark.parametrize("given", [
    {"acks": 1}, {"acks": "0"}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6},
], ids=str)  # fmt: skip
def test_what_turns_idempotence_off_is_told(given: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Where nobody asked for it in so many words: the log names the property."""
    with caplog.at_level(logging.WARNING, "downspout.kafka"):
        assert producer_properties(given)["enable_idempotence"] is False
    ((name, value),) = given.items()
    assert f"idempotence is off, because of {name}={value}" in caplog.text


def test_a_switch_that_is_none_is_a_mistake_of_the_user() -> None:
    """It is named, with a value that would do."""
    with pytest.raises(ConfigError, match="enable_idempotence = 'maybe' is neither"):
        producer_properties({"enable_idempotence": "maybe"})
