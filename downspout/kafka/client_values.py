"""Check the client's properties, and convert them from text for kafka-python.

kafka-python accepts any value, and a wrong type fails only in use: as a ``struct.error`` in the first fetch, or as a
``TypeError`` in its own thread. Here each value is checked against the type of the property's default.

* Numbers and booleans may be strings (``"30"``, ``"true"``), as in any setting.
* ``partition_assignment_strategy`` takes classes or Kafka's names ``range``, ``roundrobin``, ``sticky`` and
  ``cooperative-sticky``, one or several.
* ``api_version`` takes ``"2.8"``; names of protocols, isolation levels and mechanisms ignore case.

Properties of a producer:

====  ==================================================================================================
acks  meaning of an answer
====  ==================================================================================================
all   all in-sync replicas have the record; the broker drops repetitions (idempotence)
1     the leader has it
0     there is no answer, and no offset
====  ==================================================================================================

Idempotence needs acks=all, retries, and at most 5 requests in flight. It is on by default. A property that excludes it
turns it off with a warning; if ``enable_idempotence`` is set, the contradiction is an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, codec
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from downspout.errors import ConfigError, MissingExtraError
from downspout.formatting import nearest
from downspout.settings.secrets import REFERENCE, shown
from downspout.settings.table import CLIENT_PREFIX, parse_as

# --- Consumers ---


INT_MAX = 2**31 - 1  # The maximum of Kafka's protocol, and of a socket, in bytes or ms
ASSIGNORS: Mapping[str, type[AbstractPartitionAssignor]] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
JAVA = "org.apache.kafka.clients.consumer."
_JAVA_NAMES = {"RangeAssignor": "range", "RoundRobinAssignor": "roundrobin", "StickyAssignor": "sticky"}
_JAVA_NAMES["CooperativeStickyAssignor"] = "cooperative-sticky"
CHOICES = {
    "auto_offset_reset": ("earliest", "latest", "none"),
    "isolation_level": ("read_committed", "read_uncommitted"),
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM"),
}
OBJECTS = (
    "default_offset_commit_callback", "kafka_client", "key_deserializer", "metric_reporters", "sasl_kerberos_name",
    "sasl_oauth_token_provider", "selector", "ssl_context", "value_deserializer",
)  # fmt: skip
"""Properties whose values are objects; the client checks them itself."""
WHOLE_NUMBERS = ("receive_buffer_bytes", "send_buffer_bytes")
"""Integer properties without a default; the others without one are strings."""


def client_values(client: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a consumer's properties for kafka-python.

    Unknown properties and references to secrets are kept as they are; None ("not set") is dropped.

    Raises:
        ConfigError: a value has the wrong type or is out of range; names the property and a valid value.

    >>> client_values({"fetch_min_bytes": "30", "partition_assignment_strategy": "range"})
    {'fetch_min_bytes': 30, 'partition_assignment_strategy': [<class '...RangePartitionAssignor'>]}
    >>> client_values({"fetch_min_bytes": "many"})
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: kafka.client.fetch_min_bytes = 'many' is not a whole number from 0 to ... Try: 1
    """
    return {name: _value(name, value) for name, value in client.items() if value is not None}


def _value(name: str, value: Any) -> Any:
    if name in OBJECTS or name not in KafkaConsumer.DEFAULT_CONFIG:
        return value
    if isinstance(value, str) and REFERENCE.match(value):
        return value
    if name in SPECIAL:
        return SPECIAL[name](name, value)
    default = KafkaConsumer.DEFAULT_CONFIG[name]
    if isinstance(default, bool):
        return _parsed(name, value, bool, "neither true nor false", default)
    if isinstance(default, int) or name in WHOLE_NUMBERS:
        what = f"not a whole number from 0 to {INT_MAX:,}"
        number = _parsed(name, value, int, what, default or 65_536)
        if not 0 <= number <= INT_MAX:
            raise _wrong(name, value, what, default or 65_536)
        return number
    if isinstance(default, float):
        return _parsed(name, value, float, "not a number", 1_000)
    if not isinstance(value, str):
        raise _wrong(name, value, "not text", "quotes around it")
    return _chosen(name, value) if name in CHOICES else value


def _parsed(name: str, value: Any, kind: type, what: str, example: Any) -> Any:
    try:
        return parse_as(kind, value)
    except (TypeError, ValueError, OverflowError):
        raise _wrong(name, value, what, example) from None


def _chosen(name: str, value: str) -> str:
    known = {choice.lower(): choice for choice in CHOICES[name]}
    if value.lower() not in known:
        every = ", ".join(CHOICES[name])
        cure = known.get(nearest(value.lower(), known, ""), f"one of {every}")
        raise _wrong(name, value, f"not one of {every}" if cure in known.values() else "not known", cure)
    return known[value.lower()]


def _strategies(name: str, value: Any) -> list[type[AbstractPartitionAssignor]]:
    """Return the classes of the named strategies, in order."""
    given = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    found = []
    for each in given:
        if isinstance(each, type) and issubclass(each, AbstractPartitionAssignor):
            found.append(each)
            continue
        text = each.strip().removeprefix(JAVA) if isinstance(each, str) else ""
        text = _JAVA_NAMES.get(text, text.lower())
        if text not in ASSIGNORS:
            cure = nearest(text, ASSIGNORS, "cooperative-sticky")
            raise _wrong(name, each, f"not one of {', '.join(ASSIGNORS)}", cure)
        found.append(ASSIGNORS[text])
    if not found:
        raise _wrong(name, value, "not a strategy", "range")
    return found


def _version(name: str, value: Any) -> tuple[int, ...]:
    """Parse a broker's version: ``(2, 8)`` from that, [2, 8], "[2, 8]" or "2.8"."""
    parts = value if isinstance(value, list | tuple) else re.split(r"[.,]", str(value).strip("[]() "))
    try:
        version = tuple(parse_as(int, part) for part in parts)
    except (TypeError, ValueError, OverflowError):
        version = ()
    if len(version) < 2:
        raise _wrong(name, value, "not a version of a broker", "2.8")
    return version


def _options(name: str, value: Any) -> list[tuple[Any, ...]]:
    """Return the arguments of ``setsockopt``."""
    if not isinstance(value, list | tuple) or not all(isinstance(o, list | tuple) and len(o) == 3 for o in value):
        raise _wrong(name, value, "not a list of socket options", "[[6, 1, 1]], which is TCP_NODELAY")
    return [tuple(option) for option in value]


SPECIAL: Mapping[str, Callable[[str, Any], Any]] = {
    "api_version": _version,
    "partition_assignment_strategy": _strategies,
    "socket_options": _options,
}
"""Properties with converters of their own."""


def _wrong(name: str, value: Any, what: str, cure: Any) -> ConfigError:
    key = CLIENT_PREFIX + name
    return ConfigError(f"{key} = {shown(key, value)!r} is {what}", cure=str(cure))


# --- Producers ---


logger = logging.getLogger("downspout.kafka")

ACKS: Mapping[str, str | int] = {"all": "all", "-1": "all", "1": 1, "0": 0}
LINGER_MS = 5
IN_FLIGHT_MAX = 5  # Requests in flight to a broker, for an idempotent producer
CODECS = {"gzip": codec.has_gzip, "snappy": codec.has_snappy, "lz4": codec.has_lz4, "zstd": codec.has_zstd}
IN_FLIGHT = "max_in_flight_requests_per_connection"


def producer_properties(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a producer's properties for kafka-python.

    Raises:
        ConfigError: a value is invalid, or values contradict each other.
        MissingExtraError: the package of the compression is not installed.

    >>> found = producer_properties({"acks": "1", "compression_type": "none"})
    >>> found["acks"], found["enable_idempotence"], found["compression_type"]
    (1, False, None)
    >>> producer_properties({"acks": 1, "enable_idempotence": True})
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: enable_idempotence cannot be combined with acks=1. Try: leave ...
    """
    acks, compression = _acks(given.get("acks", "all")), _codec(given.get("compression_type"))
    found = {**given, "acks": acks, "compression_type": compression}
    for name, default in (("linger_ms", LINGER_MS), ("retries", None), (IN_FLIGHT, None)):
        value = found.get(name, default)
        if value is not None:
            found[name] = _number(name, value)
    return {**found, "enable_idempotence": _is_idempotent(found)}


def _acks(value: Any) -> str | int:
    acks = ACKS.get(str(value).strip().lower())
    if acks is None:
        raise ConfigError(f"acks = {value!r} is not one of all, 1, 0", cure="all")
    return acks


def _number(name: str, value: Any) -> Any:
    if value == float("inf"):
        return value
    try:
        number = parse_as(float if name == "linger_ms" else int, value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ConfigError(f"{name} = {value!r} must be a number of at least 0", cure="5")
    return number


def _codec(value: Any) -> str | None:
    name = str(value).strip().lower()
    if value is None or name == "none":
        return None
    if name not in CODECS:
        raise ConfigError(f"compression_type = {value!r} is not one of none, {', '.join(CODECS)}", cure="zstd")
    if not CODECS[name]():
        raise MissingExtraError(
            f"the package that compresses with {name} is not installed", cure="`pip install 'downspout[codecs]'`"
        )
    return name


def _is_idempotent(found: Mapping[str, Any]) -> bool:
    """Return whether to enable idempotence."""
    wanted = found.get("enable_idempotence")
    try:
        is_on = None if wanted is None else parse_as(bool, wanted)
    except (TypeError, ValueError):
        raise ConfigError(f"enable_idempotence = {wanted!r} is neither true nor false", cure="true") from None
    if is_on is False:
        return False
    against = [f"acks={found['acks']}"] if found["acks"] != "all" else []
    if found.get("retries") == 0:
        against.append("retries=0")
    in_flight = found.get("max_in_flight_requests_per_connection", KafkaProducer.DEFAULT_CONFIG[IN_FLIGHT])
    if in_flight > IN_FLIGHT_MAX:
        against.append(f"{IN_FLIGHT}={in_flight}")
    if not against:
        return True
    if is_on:
        raise ConfigError(
            f"enable_idempotence cannot be combined with {', '.join(against)}",
            cure="leave enable_idempotence out, or " + " and ".join(f"leave {each} out" for each in against),
        )
    logger.warning(
        "idempotence is off, because of %s: a record whose answer is lost may be written twice", ", ".join(against)
    )
    return False
