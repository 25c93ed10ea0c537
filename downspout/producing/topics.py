"""To which topic a tuple goes: always the same one, by a field, or by a function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from downspout.errors import ConfigError
from downspout.kafka.port import TOPIC_LEGAL
from downspout.settings.import_path import load

__all__ = ["Select", "check_topics", "selector"]

Select = Callable[[Any], str | None]
"""Returns the topic of a tuple's values; None: it has none."""
WAYS = ("topic_field", "topic_function")
CURE = "topic='orders', or topic_field, or topic_function"


def check_topics(settings: Mapping[str, Any], *, needed: bool = True) -> None:
    """Raise a ConfigError where several ways name the topic, none does and one is needed, or it has no legal name."""
    given = [name for name in WAYS if settings[name] is not None]
    if len(given) > 1:
        raise ConfigError(f"produce.{' and produce.'.join(given)} are set", cure=f"only one of {', '.join(WAYS)}")
    if needed and not given and not settings["topic"]:
        raise ConfigError("no topic is named to write to", cure=CURE)
    if (topic := settings["topic"]) and not TOPIC_LEGAL.fullmatch(topic):
        raise ConfigError(
            f"produce.topic = {topic!r} cannot be a topic's name", cure="letters, digits, dots, underscores and dashes"
        )


def selector(fields: Sequence[str], settings: Mapping[str, Any], log: logging.Logger) -> Select:
    """Return what tells the topic of a tuple's values.

    Raises:
        ConfigError: no topic is named, or in several ways, or there is no such function.

    >>> settings = {"topic": "rest", "topic_field": "kind", "topic_function": None}
    >>> select = selector(["kind", "value"], settings, logging.getLogger())
    >>> select(("orders", 1)), select((None, 1))
    ('orders', 'rest')
    """
    check_topics(settings, needed=settings.get("mapper") is None)
    default = settings["topic"] or None
    if (path := settings["topic_function"]) is not None:
        function = load("produce.topic_function", path)
        return lambda values: function(values) or default
    if (name := settings["topic_field"]) is None:
        return lambda values: default
    if name not in fields:
        log.warning(
            "produce.topic_field = %r, and the input has the fields %s: all goes to %s",
            name, ", ".join(fields), default or "no topic",
        )  # fmt: skip
        return lambda values: default
    place = list(fields).index(name)
    return lambda values: values[place] or default
