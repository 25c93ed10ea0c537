"""``kafka.…`` options: the Java client's properties, as the connector takes them, in kafka-python's names.

Most names differ in the dots alone. What has another form (JAAS, key stores) is translated. How to be a member of a
group has no effect, because the source reads without one; the group's name is refused, and so is what the source or the
sink decides itself. A value is never part of an error: it may be a secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from downspout.errors import ConfigError
from downspout.settings.secrets import REFERENCE, resolve_client

_NOT_TEXT = {"api_version", "kafka_client", "metric_reporters", "partitioner", "sasl_oauth_token_provider", "selector",
             "socket_options", "ssl_context"}  # fmt: skip
_TEXT = {"acks"}
_WHOLE = {"receive_buffer_bytes", "send_buffer_bytes"}
_TRANSLATED = (
    "sasl.jaas.config",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.truststore.location",
)


@dataclass(frozen=True)
class Client:
    """A kind of client."""

    defaults: Mapping[str, Any]  # kafka-python's properties of it
    decided: Mapping[str, str]  # what the source or the sink sets, as the connector does, and what to use instead
    # What may stay when a job moves here: it is about groups, or the Java client alone has it.
    without_effect: frozenset[str]

    def names(self) -> dict[str, str]:
        """Return the names of properties that a text can give, with dots, and kafka-python's for them."""
        found = {name: value for name, value in self.defaults.items() if name not in _NOT_TEXT and not callable(value)}
        return {name.replace("_", "."): name for name in found}


NO_GROUP = "the source reads without a consumer group, so it needs no rights on one and commits to none"
WITHOUT_GROUP = (
    "remove it; downspout.spark.commits.commit_progress(spark, group, options) shows the query's progress under a "
    "group's name"
)
INTERCEPTORS = {"interceptor.classes": "use DataFrame operators"}
CONSUMER = Client(
    KafkaConsumer.DEFAULT_CONFIG,
    {
        "auto.offset.reset": "startingOffsets says where to start",
        "group.id": f"{WITHOUT_GROUP}: {NO_GROUP}",
        "enable.auto.commit": "offsets are kept in Spark's checkpoint; downspout.spark.commits shows them to lag tools",
        "key.deserializer": "keys are binary; cast the column",
        "value.deserializer": "values are binary; cast the column",
        **INTERCEPTORS,
    },
    frozenset(
        {
            "allow.auto.create.topics", "auto.commit.interval.ms", "default.api.timeout.ms",
            "group.instance.id", "heartbeat.interval.ms", "max.poll.interval.ms", "max.poll.records",
            "partition.assignment.strategy", "session.timeout.ms", "socket.connection.setup.timeout.ms",
            "socket.connection.setup.timeout.max.ms", "ssl.enabled.protocols", "ssl.keystore.type", "ssl.protocol",
            "ssl.truststore.type",
        }
    ),
)  # fmt: skip
PRODUCER = Client(
    KafkaProducer.DEFAULT_CONFIG,
    {
        "key.serializer": "the column key is a string or binary",
        "value.serializer": "the column value is a string or binary",
        "partitioner.class": "the option partitioner",
        "transactional.id": "a batch of Spark's is written at least once; a reader can drop repeats by the headers",
        **INTERCEPTORS,
    },
    frozenset(
        {
            "buffer.memory", "client.rack", "enable.metrics.push", "metadata.max.idle.ms",
            "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
            "partitioner.ignore.keys", "retry.backoff.max.ms", "socket.connection.setup.timeout.ms",
            "socket.connection.setup.timeout.max.ms", "ssl.enabled.protocols", "ssl.keystore.type", "ssl.protocol",
            "ssl.truststore.type", "transaction.timeout.ms",
        }
    ),
)  # fmt: skip


def client_properties(given: Mapping[str, str], client: Client = CONSUMER) -> dict[str, Any]:
    """Return kafka-python's properties for the options without their ``kafka.``.

    >>> client_properties({"security.protocol": "SSL", "fetch.max.wait.ms": "100", "ssl.truststore.location": "ca.pem"})
    {'fetch_max_wait_ms': 100, 'security_protocol': 'SSL', 'ssl_cafile': 'ca.pem'}
    """
    properties: dict[str, Any] = {}
    given, known = _looked_up(given), client.names()
    for name in sorted(given):
        if name in client.decided:
            raise ConfigError(f"kafka.{name} cannot be set", cure=client.decided[name])
        if name in _TRANSLATED:
            properties |= _translate(name, given[name], given)
        elif name in known and name not in client.without_effect:
            properties[known[name]] = _typed(name, given[name], client.defaults[known[name]])
        elif name not in client.without_effect:
            near = difflib.get_close_matches(name, [*known, *_TRANSLATED], n=1, cutoff=0.5)
            raise ConfigError(
                f"kafka.{name} is not a property of the client", cure=f"kafka.{near[0]}" if near else "remove it"
            )
    return properties


def _looked_up(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options with secrets in place of references (``env:NAME``, ``file:PATH``): Spark shows options."""
    # They are looked up on the driver; tasks are given what was found.
    return {**given, **resolve_client({name: value for name, value in given.items() if REFERENCE.match(value)})}


def _typed(name: str, text: str, default: Any) -> Any:
    """Return a value in the type that kafka-python's default has."""
    if name in _TEXT:
        return text
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"kafka.{name} is neither true nor false", cure="true or false")
        return text.lower() == "true"
    if isinstance(default, (int, float)) or name.replace(".", "_") in _WHOLE:
        if not re.fullmatch(r"-?\d+", text):
            raise ConfigError(f"kafka.{name} is not a whole number", cure="a number without unit")
        return int(text)
    return text


def _translate(name: str, value: str, given: Mapping[str, str]) -> dict[str, Any]:
    if name == "sasl.jaas.config":
        return _jaas(value)
    if name == "ssl.endpoint.identification.algorithm":
        return {"ssl_check_hostname": value != ""}
    if name == "ssl.key.password":
        return {"ssl_password": value}
    if name == "ssl.keystore.password":
        return {} if "ssl.key.password" in given else {"ssl_password": value}
    kind = given.get(name.replace("location", "type"), "PEM")
    if kind.upper() != "PEM" or value.lower().endswith((".jks", ".p12", ".pfx")):
        raise ConfigError(
            f"kafka.{name} must name a PEM file", cure="convert the store with `keytool` and `openssl pkcs12 -nodes`"
        )
    return {"ssl_cafile": value} if "truststore" in name else {"ssl_certfile": value, "ssl_keyfile": value}


def _jaas(value: str) -> dict[str, str]:
    """Return user and password of a PLAIN or SCRAM login module.

    >>> _jaas('org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";')
    {'sasl_plain_username': 'u', 'sasl_plain_password': 'p'}
    """
    fields = dict(re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', value))
    if not re.search(r"(Plain|Scram)LoginModule", value) or not {"username", "password"} <= set(fields):
        raise ConfigError(
            "kafka.sasl.jaas.config is not a PLAIN or SCRAM login with username and password",
            cure="kafka.sasl.plain.username and kafka.sasl.plain.password, or kafka-python's Kerberos properties",
        )
    plain = {key: re.sub(r"\\(.)", r"\1", text) for key, text in fields.items()}
    return {"sasl_plain_username": plain["username"], "sasl_plain_password": plain["password"]}
