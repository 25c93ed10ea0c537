"""Every numeric setting has limits, and rejects values beyond them."""

from __future__ import annotations

import math

import pytest

from downspout.errors import ConfigError
from downspout.settings import SETTINGS

NUMBERS = {key: setting for key, setting in SETTINGS.items() if setting.kind in (int, float)}
WITHOUT_MAXIMUM = [
    "batch.attempts_max", "batch.bytes_max", "batch.records_max",
    "kafka.behind_max", "kafka.chunk_bytes_max", "kafka.emits_per_next_max", "kafka.retries_max",
    "kafka.retry_cache_bytes", "kafka.timeouts_max", "kafka.trace_every", "kafka.uncommitted_max",
    "parquet.compact_every_s", "parquet.flush_age_s", "parquet.flush_bytes", "parquet.flush_rows",
    "parquet.idle_s", "parquet.lateness_s",
    "parquet.outage_s_max", "parquet.rebuild",
    "produce.batch_bytes", "produce.buffer_bytes",
    "run.drain_s", "run.for_s", "run.member", "run.records", "run.restarts_max", "run.seed", "run.stuck_s",
    "sql.flush_age_s", "sql.flush_bytes", "sql.flush_rows", "sql.outage_s_max",
]  # fmt: skip
"""Counts and sizes, and times of which any makes sense: no single wait for an answer is among them."""


def test_each_number_has_its_limits() -> None:
    """A lowest value without exception, and a highest one where the list above has no reason against it."""
    assert [key for key, setting in NUMBERS.items() if setting.minimum is None] == []
    assert {key for key, setting in NUMBERS.items() if setting.maximum is None} <= set(WITHOUT_MAXIMUM)


@pytest.mark.parametrize("given", [lambda value: value, str], ids=["number", "text"])
def test_what_is_beyond_a_limit_is_refused(given: type) -> None:
    """The limit itself is accepted, what comes right behind it is not; nor is what is no number."""
    for key, setting in NUMBERS.items():
        for limit, direction, said in ((setting.minimum, -1, "below"), (setting.maximum, 1, "above")):
            if limit is None:
                continue
            beyond = limit + direction if setting.kind is int else math.nextafter(limit, direction * math.inf)
            assert setting.parse(given(limit), "test") == limit
            with pytest.raises(ConfigError, match=rf"^{key} = .* is {said} "):
                setting.parse(given(beyond), "test")
        for unusable in (math.nan, math.inf, -math.inf):
            with pytest.raises(ConfigError, match=rf"^{key} = .* is not "):
                setting.parse(given(unusable), "test")


def test_an_integer_beyond_the_range_of_floats_is_refused() -> None:
    """TOML's integers have no limit, and a float setting such as a duration cannot hold all of them."""
    with pytest.raises(ConfigError, match=r"^run\.drain_s = 1000.* is not a number"):
        SETTINGS["run.drain_s"].parse(10**400, "downspout.toml")
