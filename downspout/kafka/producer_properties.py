"""Properties of a producer: what acks promise, when repetitions are recognised, and which compression there is.

====  ==================================================================================================
acks  what an answer means
====  ==================================================================================================
all   all replicas in sync have the record; repetitions are recognised by the broker (idempotence)
1     the leader has it
0     nothing; there is no answer, and no offset
====  ==================================================================================================

Idempotence needs acks=all, retries, and at most 5 requests on their way. It is on unless something else is wanted that
does not go with it; then it is turned off, and the log says so. Where it is wanted in so many words, the contradiction
is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kafka import KafkaProducer, codec

from downspout.errors import ConfigError, MissingExtraError
from downspout.settings.values import parse_as

__all__ = ["ACKS", "producer_properties"]

logger = logging.getLogger("downspout.kafka")

ACKS: Mapping[str, str | int] = {"all": "all", "-1": "all", "1": 1, "0": 0}
LINGER_MS = 5
IN_FLIGHT_MAX = 5  # Requests of an idempotent producer that may be on their way to a broker
CODECS = {"gzip": codec.has_gzip, "snappy": codec.has_snappy, "lz4": codec.has_lz4, "zstd": codec.has_zstd}
IN_FLIGHT = "max_in_flight_requests_per_connection"


def producer_properties(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a producer of kafka-python takes.

    Raises:
        ConfigError: a value that there is not, or values that contradict each other.
        MissingExtraError: the package of the compression is not installed.

    >>> found = producer_properties({"acks": "1", "compression_type": "none"})
    >>> found["acks"], found["enable_idempotence"], found["compression_type"]
    (1, False, None)
    >>> producer_properties({"acks": 1, "enable_idempotence": True})
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: enable_idempotence does not go with acks=1. Try: leave enable_idempotence out, or ...
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
        raise ConfigError(f"acks = {value!r} is none of all, 1, 0", cure="all")
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
        raise ConfigError(f"compression_type = {value!r} is none of none, {', '.join(CODECS)}", cure="zstd")
    if not CODECS[name]():
        raise MissingExtraError(
            f"the package that compresses with {name} is not installed", cure="`pip install 'downspout[codecs]'`"
        )
    return name


def _is_idempotent(found: Mapping[str, Any]) -> bool:
    """Return whether the broker is to recognise repetitions."""
    wanted = found.get("enable_idempotence")
    is_on = None if wanted is None else parse_as(bool, wanted)
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
            f"enable_idempotence does not go with {', '.join(against)}",
            cure="leave enable_idempotence out, or " + " and ".join(f"leave {each} out" for each in against),
        )
    logger.warning(
        "idempotence is off, because of %s: a record whose answer is lost may be written twice", ", ".join(against)
    )
    return False
