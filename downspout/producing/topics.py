"""To which topic a tuple goes: always the same one, by a field's name or place, or by a function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from downspout.errors import ConfigError
from downspout.settings.import_path import load

__all__ = ["Select", "check_topics", "selector"]

Select = Callable[[Any], str | None]
"""Returns the topic of a tuple's values; None: it has none."""
WAYS = ("topic_field", "topic_index", "topic_function")
CURE = "topic='orders', or one of topic_field, topic_index, topic_function"


def check_topics(settings: Mapping[str, Any], *, needed: bool = True) -> None:
    """Raise a ConfigError where several ways name the topic, or none does and one is needed."""
    given = [name for name in WAYS if settings[name] is not None]
    if len(given) > 1:
        raise ConfigError(f"produce.{' and produce.'.join(given)} are set", cure=f"only one of {', '.join(WAYS)}")
    if needed and not given and not settings["topic"]:
        raise ConfigError("no topic is named to write to", cure=CURE)


def selector(fields: Sequence[str], settings: Mapping[str, Any], log: logging.Logger) -> Select:
    """Return what tells the topic of a tuple's values.

    Raises:
        ConfigError: no topic is named, or in several ways, or there is no such place or function.

    >>> settings = {"topic": "rest", "topic_field": "kind", "topic_index": None, "topic_function": None}
    >>> select = selector(["kind", "value"], settings, logging.getLogger())
    >>> select(("orders", 1)), select((None, 1))
    ('orders', 'rest')
    """
    check_topics(settings, needed=settings.get("mapper") is None)
    default = settings["topic"] or None
    if (path := settings["topic_function"]) is not None:
        function = load("produce.topic_function", path)
        return lambda values: function(values) or default
    if (index := settings["topic_index"]) is not None:
        if index >= len(fields):
            raise ConfigError(
                f"produce.topic_index = {index}, and the input has {len(fields)} fields: {', '.join(fields)}",
                cure=f"0 to {len(fields) - 1}",
            )
    elif (name := settings["topic_field"]) is not None:
        if name not in fields:
            log.warning(
                "produce.topic_field = %r, and the input has the fields %s: all goes to %s",
                name, ", ".join(fields), default or "no topic",
            )  # fmt: skip
            return lambda values: default
        index = list(fields).index(name)
    else:
        return lambda values: default
    place: int = index
    return lambda values: values[place] or default
