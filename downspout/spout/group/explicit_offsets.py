"""What a user names by partition: ``kafka.start_offsets`` and ``kafka.stop_offsets``, and ``kafka.partitions``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from downspout.errors import ConfigError, coordinates
from downspout.kafka.port import TopicPartition
from downspout.spout.group.bounds import is_named

ENTRY = re.compile(r"\s*([^\[\]=]+)\[([0-9]{1,9})\]\s*=\s*([0-9]{1,18})\s*")


_SOME = re.compile(r"\s*([^\[\],]+)\[\s*([0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)\s*\]\s*(?:,|\Z)")


def partitions_named(entries: Iterable[str] | None) -> dict[str, frozenset[int]]:
    """Return the partitions that ``kafka.partitions`` names, by topic.

    >>> {topic: sorted(numbers) for topic, numbers in partitions_named(["orders[0,2]", "users[1]"]).items()}
    {'orders': [0, 2], 'users': [1]}
    """
    text, at = ",".join(entries or ()), 0  # the environment gives a list in one text, which was split at each comma
    found: dict[str, frozenset[int]] = {}
    while at < len(text):
        if (match := _SOME.match(text, at)) is None:
            raise ConfigError(f"kafka.partitions: {text[at:]!r} names no partitions of a topic", cure="orders[0,2]")
        topic, numbers = match[1].strip(), frozenset(int(number) for number in match[2].split(","))
        if topic in found:
            raise ConfigError(f"kafka.partitions names {topic} twice", cure="orders[0,2]: all its partitions at once")
        found[topic], at = numbers, match.end()
    return found


def named_alone(settings: Mapping[str, Any], partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return those of the partitions that ``kafka.partitions`` does not leave out: it may name some of a topic."""
    named = partitions_named(settings["partitions"])
    return [tp for tp in partitions if tp.partition in named.get(tp.topic, (tp.partition,))]


def check_partitions(settings: Mapping[str, Any]) -> None:
    """Raise a ConfigError where ``kafka.partitions`` contradicts other settings."""
    named = partitions_named(settings["partitions"])
    if named and settings["mode"] != "assign":
        raise ConfigError(
            f"kafka.partitions is set, but with kafka.mode = {settings['mode']} the consumer group gives out the "
            "partitions",
            cure="kafka.mode=assign, or no kafka.partitions",
        )
    for topic, numbers in named.items():
        _check_topic("kafka.partitions", TopicPartition(topic, min(numbers)), settings)


def offsets_of(setting: str, entries: Iterable[str] | None) -> dict[TopicPartition, int]:
    """Return the offset of each partition that is named.

    >>> offsets_of("kafka.start_offsets", ["orders[0]=17"])
    {TopicPartition(topic='orders', partition=0): 17}
    >>> offsets_of("kafka.start_offsets", ["orders=17"])
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: kafka.start_offsets: 'orders=17' is not an offset of a partition. Try: orders[0]=17
    """
    found: dict[TopicPartition, int] = {}
    for entry in entries or ():
        if not (match := ENTRY.fullmatch(entry)):
            raise ConfigError(f"{setting}: {entry!r} is not an offset of a partition", cure="orders[0]=17")
        tp = TopicPartition(match[1], int(match[2]))
        if tp in found:
            raise ConfigError(f"{setting} names {coordinates(*tp)} twice", cure="each partition once")
        found[tp] = int(match[3])
    return found


def check_offsets(settings: Mapping[str, Any], bounded: bool) -> None:
    """Raise a ConfigError where the offsets that are named contradict each other, or other settings.

    Args:
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
    if is_named(settings, tp.topic):
        return
    pattern = settings["pattern"]
    where = f"does not match kafka.pattern = {pattern!r}" if pattern else "is not in kafka.topics"
    raise ConfigError(f"{setting} names {coordinates(*tp)}, whose topic {where}", cure="look at the spelling")
