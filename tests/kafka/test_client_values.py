"""Properties of the Kafka client: valid text is converted for kafka-python, and the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from downspout.errors import ConfigError
from downspout.kafka.client_values import OBJECTS, WHOLE_NUMBERS, client_values
from spouts.kafka import KafkaSpout

ALL = [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor, CooperativeStickyAssignor]
OTHERS = sorted(
    set(KafkaConsumer.DEFAULT_CONFIG) - set(OBJECTS) - {"bootstrap_servers", "group_id", "group_instance_id"}
)
GOOD = {
    "partition_assignment_strategy": "range", "api_version": "2.8", "socket_options": [[6, 1, 1]],
    "auto_offset_reset": "latest", "isolation_level": "read_committed", "security_protocol": "PLAINTEXT",
    "sasl_mechanism": "PLAIN",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("partition_assignment_strategy", "range, roundrobin,sticky, Cooperative-Sticky", ALL),
        ("partition_assignment_strategy", ["cooperative-sticky", RangePartitionAssignor], [ALL[3], ALL[0]]),
        ("partition_assignment_strategy", StickyPartitionAssignor, [ALL[2]]),
        ("partition_assignment_strategy", "org.apache.kafka.clients.consumer.RoundRobinAssignor", [ALL[1]]),
        ("fetch_min_bytes", "30", 30),
        ("check_crcs", "false", False),
        ("consumer_timeout_ms", 5, 5.0),
        ("receive_buffer_bytes", "65536", 65_536),
        ("api_version", "[2, 8]", (2, 8)),
        ("api_version", 2.8, (2, 8)),
        ("security_protocol", "sasl_ssl", "SASL_SSL"),
        ("sasl_mechanism", "scram-sha-256", "SCRAM-SHA-256"),
        ("isolation_level", "READ_COMMITTED", "read_committed"),
        ("fetch_min_bytes", "env:BYTES", "env:BYTES"),
        ("client_id", "17", "17"),
    ],
)
def test_what_text_can_say(name: str, given: Any, wanted: Any) -> None:
    """A value is what kafka-python takes; a reference to a secret is left alone."""
    assert client_values({name: given}) == {name: wanted}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "wrong", [["a"], {"a": 1}, -1, 2**40, object(), ""], ids=["list", "dict", "negative", "huge", "object", "empty"]
)
def test_a_mistyped_value_names_its_property(name: str, wrong: Any) -> None:
    """Each property refuses what it cannot be, by name and with a cure, or takes it as text; None is not set."""
    default = KafkaConsumer.DEFAULT_CONFIG[name]
    if wrong == "" and (isinstance(default, str) or default is None) and name not in (*GOOD, *WHOLE_NUMBERS):
        assert client_values({name: wrong}) in ({name: ""}, {})
        return
    if wrong in (-1, 2**40) and isinstance(default, float):
        return
    with pytest.raises(ConfigError, match=rf"kafka\.client\.{name} = .* is n.*\. Try: "):
        client_values({name: wrong})
    assert client_values({name: None}) == {}


@pytest.mark.parametrize("name", OTHERS)
def test_the_clients_own_defaults_pass(name: str) -> None:
    """What kafka-python has by default is right, and so is an example of each property without a default."""
    default = KafkaConsumer.DEFAULT_CONFIG[name]
    given = default if default is not None else GOOD.get(name, "7")
    assert client_values(client_values({name: given})) == client_values({name: given})


def test_a_spec_with_a_mistyped_value_is_refused() -> None:
    """The error comes when the topology is built, and holds no secret."""
    with pytest.raises(ConfigError, match=r"kafka\.client\.fetch_max_wait_ms = 'soon' is not a whole number"):
        KafkaSpout.spec(topics=["a"], client={"fetch_max_wait_ms": "soon"})
    with pytest.raises(ConfigError, match=r"partition_assignment_strategy = 'sticki' is not one of .* Try: sticky"):
        KafkaSpout.spec(topics=["a"], client={"partition.assignment.strategy": "sticki"})
    with pytest.raises(ConfigError) as refused:
        KafkaSpout.spec(topics=["a"], client={"sasl_plain_password": 31337})
    assert "31337" not in str(refused.value)
