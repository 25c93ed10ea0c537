"""Whether a spout's settings let it emit chunks (``kafka.emit``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from downspout.errors import ConfigError

COLUMN_FORMATS = ("utf8", "bytes")  # Formats of keys and values that have a column of one type


def check_emit(settings: Mapping[str, Any]) -> None:
    """Raise a ConfigError where ``kafka.emit`` is chunk, and another setting does not let chunks be."""
    if settings["emit"] != "chunk":
        return
    if settings["guarantee"] != "AT_LEAST_ONCE":
        raise ConfigError(
            f"kafka.emit = chunk goes by acks, which kafka.guarantee = {settings['guarantee']} does not look at",
            cure="kafka.guarantee=AT_LEAST_ONCE, or kafka.emit=record",
        )
    if settings["translator"]:
        raise ConfigError(
            "kafka.translator makes the tuples of single records, and kafka.emit = chunk has none",
            cure="a bolt with process_chunk, or kafka.emit=record",
        )
    for name in ("key_format", "value_format"):
        if settings[name] not in COLUMN_FORMATS:
            raise ConfigError(
                f"kafka.{name} = {settings[name]} has a type for each record, and a column has one",
                cure=f"kafka.{name}=utf8 and JsonParseBolt, or kafka.emit=record",
            )


def records_by_settings(settings: Mapping[str, Any], run_records: object = None) -> str:
    """Return which of its settings lets a spout emit records; empty: chunks may leave.

    Args:
        settings: those of the scope ``kafka``, parsed.
        run_records: the value of ``run.records``.
    """
    try:
        check_emit({**settings, "emit": "chunk"})
    except ConfigError as error:
        return error.message.replace("kafka.emit = chunk", "a chunk")
    if settings["retries_max"] == 0:
        return "with kafka.retries_max = 0 nothing finds the record of a chunk that fails"
    return "run.records counts tuples" if run_records else ""
