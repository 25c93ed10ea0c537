"""JsonParseBolt: a JSON object in, the fields you name out.

What becomes of a value:

=============================================  =================================================================
the value                                      what happens
=============================================  =================================================================
a JSON object                                  one tuple: ``origin``, then the named fields in order
an object without one of the keys              that field is None
null (a Kafka tombstone)                       no tuple; acked and counted as ``filtered``
not JSON, not UTF-8, or JSON but not an object  the tuple fails with the record's coordinates; the spout retries it
                                               and then writes it to the dead-letter topic
=============================================  =================================================================

A field may be named other than its key, ``field=key``. That is needed where a key is called ``origin``,
because that name carries the row's identity: ``fields=["carrier", "from_airport=origin"]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from downspout import config
from downspout.component import Bolt
from downspout.errors import ConfigError, RecordError, coordinates
from downspout.ledger.origin import Origin


def split_fields(fields: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the output fields and the keys of the object that fill them.

    Raises:
        ConfigError: a field is named twice, has no name, or is called ``origin``.

    >>> split_fields(["carrier", "from_airport=origin"])
    (('carrier', 'from_airport'), ('carrier', 'origin'))
    """
    names, keys = [], []
    for field in fields:
        name, equals, key = field.partition("=")
        name, key = name.strip(), (key if equals else name).strip()
        if not name or not key:
            raise ConfigError(f"parse.fields: {field!r} names no field", cure="`field` or `field=key`")
        if name == "origin":
            raise ConfigError(
                "parse.fields: the field `origin` carries the row's identity",
                cure=f"another name for it: `from_{key}={key}`",
            )
        if name in names:
            raise ConfigError(f"parse.fields names {name!r} twice", cure="one name per field")
        names.append(name)
        keys.append(key)
    return tuple(names), tuple(keys)


def parse_object(value: str | bytes, keys: Sequence[str]) -> list[Any]:
    """Return the values of ``keys`` in the JSON object ``value``; None where it lacks one.

    Raises:
        ValueError: ``value`` is no JSON, or no object.

    >>> parse_object('{"carrier": "UA", "dep_delay": 2}', ["carrier", "tailnum"])
    ['UA', None]
    """
    document = orjson.loads(value)  # its error is a ValueError that says where
    if type(document) is not dict:
        raise ValueError(f"a JSON object is needed, this is {_JSON_NAMES[type(document)]}")
    return list(map(document.get, keys))


_JSON_NAMES: Mapping[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


class JsonParseBolt(Bolt):
    """Reads the tuple fields ``origin`` and ``value``; emits ``origin`` and the fields named in ``parse.fields``.

    >>> JsonParseBolt.spec(fields=["carrier"]).outputs["default"].output_fields
    ['origin', 'carrier']
    """

    settings_scopes: ClassVar[tuple[str, ...]] = ("parse",)
    requires: ClassVar[tuple[str, ...]] = ("origin", "value")

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> list[str]:
        """Return ``origin`` and the fields that ``parse.fields`` names.

        Raises:
            ConfigError: there are none, or one is malformed.
        """
        if not config.get("parse.fields"):
            raise ConfigError("parse.fields is not set", cure='fields=["carrier", "dep_delay"]')
        return ["origin", *split_fields(config["parse.fields"])[0]]

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings."""
        _, self._keys = split_fields(config.parse_scope(storm_conf, "parse")["fields"])
        self._filtered = 0

    def process(self, tup: Any) -> None:
        """Emit the record's fields.

        Raises:
            RecordError: the value is no JSON object; names its place in Kafka.
        """
        value = tup.values.value
        if value is None:
            self._filtered += 1
            return
        origin = tup.values.origin
        try:
            fields = parse_object(value, self._keys)
        except ValueError as error:
            place = Origin.of(origin)
            where = coordinates(place.topic, place.partition, place.offset)
            raise RecordError(
                f"{where}: {self.component_name}: value is not as expected: {error}",
                cure="correct the producer; the record itself will be in the dead-letter topic",
            ) from error
        self.emit([origin, *fields])

    def report(self) -> Mapping[str, float]:
        """Return how many null values were passed over."""
        return {"filtered": self._filtered}
