"""Offsets that a user names, partition by partition: ``kafka.start_offsets`` and ``kafka.stop_offsets``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from downspout.errors import ConfigError, coordinates
from downspout.kafka.port import TopicPartition

__all__ = ["check_offsets", "offsets_of"]

ENTRY = re.compile(r"\s*([^\[\]=]+)\[([0-9]{1,9})\]\s*=\s*([0-9]{1,18})\s*")


def offsets_of(setting: str, entries: Iterable[str] | None) -> dict[TopicPartition, int]:
    """Return the offset of each partition that is named.

    Raises:
        ConfigError: an entry is malformed, or names a partition again.

    >>> offsets_of("kafka.start_offsets", ["orders[0]=17"])
    {TopicPartition(topic='orders', partition=0): 17}
    >>> offsets_of("kafka.start_offsets", ["orders=17"])
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: kafka.start_offsets: 'orders=17' is no offset of a partition. Try: orders[0]=17
    """
    found: dict[TopicPartition, int] = {}
    for entry in entries or ():
        if not (match := ENTRY.fullmatch(entry)):
            raise ConfigError(f"{setting}: {entry!r} is no offset of a partition", cure="orders[0]=17")
        tp = TopicPartition(match[1], int(match[2]))
        if tp in found:
            raise ConfigError(f"{setting} names {coordinates(*tp)} twice", cure="each partition once")
        found[tp] = int(match[3])
    return found


def check_offsets(settings: Mapping[str, Any], bounded: bool) -> None:
    """Raise a ConfigError where the offsets that are named contradict each other, or other settings.

    Args:
        settings: those of the scope ``kafka``, of which topics and pattern make sense.
        bounded: whether the run ends.
    """
    starts = offsets_of("kafka.start_offsets", settings["start_offsets"])
    stops = offsets_of("kafka.stop_offsets", settings["stop_offsets"])
    if settings["start"].endswith("OFFSETS") and not starts:
        raise ConfigError(f"kafka.start is {settings['start']}, but there are no offsets", cure="kafka.start_offsets")
    if stops and not bounded:
        raise ConfigError("kafka.stop_offsets is set, but the run has no end", cure="run.until=end (`--until end`)")
    for setting, named in (("kafka.start_offsets", starts), ("kafka.stop_offsets", stops)):
        for tp in named:
            _check_topic(setting, tp, settings)
    for tp in starts.keys() & stops.keys():
        if stops[tp] < starts[tp]:
            raise ConfigError(
                f"kafka.stop_offsets ends {coordinates(*tp)} at {stops[tp]}, below its start at {starts[tp]} "
                "(kafka.start_offsets)",
                cure="a stop at or above the start; the stop itself is not read",
            )


def _check_topic(setting: str, tp: TopicPartition, settings: Mapping[str, Any]) -> None:
    topics, pattern = settings["topics"] or (), settings["pattern"]
    if tp.topic in topics or (pattern and re.fullmatch(pattern, tp.topic)):
        return
    where = f"does not match kafka.pattern = {pattern!r}" if pattern else "is not in kafka.topics"
    raise ConfigError(f"{setting} names {coordinates(*tp)}, whose topic {where}", cure="look at the spelling")
