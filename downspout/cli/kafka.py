"""``downspout kafka``: run the embedded broker, list topics, write and read records.

``start``, ``stop`` and ``status`` control the embedded broker; ``topics``, ``create``, ``produce`` and ``consume`` work
with any brokers (``--bootstrap``). Results go to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.cli import kafka_consume, kafka_produce
from downspout.cli.access import add_access, way_in
from downspout.cli.arguments import add_actions, exit_codes, place, port, positive, sentence
from downspout.clock import SYSTEM_CLOCK
from downspout.errors import BrokerError
from downspout.formatting import counted, size

if TYPE_CHECKING:
    from downspout.broker.broker_files import Broker
    from downspout.broker.embedded import EmbeddedKafka
    from downspout.kafka.client import KafkaCluster

Handler = Callable[[argparse.Namespace], int]


def add_parser(commands: Any) -> None:
    """Add the command with its subcommands."""
    parser = commands.add_parser("kafka", help="run the embedded Kafka, list topics, write and read records")
    actions = add_actions(parser)
    _add_broker_actions(actions)
    _add_topic_actions(actions)


def _add_broker_actions(actions: Any) -> None:
    start = _add(actions, "start", _start, "start the broker in the background and wait until it answers")
    start.add_argument("--port", type=port, help="port (default: the one it had before, or any free one)")
    start.add_argument("--tls", action="store_true", help="use TLS; only when the directory is first made")
    start.add_argument(
        "--sasl",
        type=str.lower,
        choices=["plain", "scram-sha-256", "scram-sha-512"],
        help="require a password; only when the directory is first made",
    )
    start.add_argument(
        "--foreground", action="store_true", help="stay in the foreground, and stop the broker at Ctrl-C"
    )
    status = _add(actions, "status", _status, "show whether the broker is running", _1="it does not")
    status.add_argument("--json", action="store_true", help="print JSON")
    for each in (start, status, _add(actions, "stop", _stop, "stop the broker, and keep its data")):
        each.add_argument("--dir", type=place, help="directory of the broker (default: .downspout/kafka)")


def _add_topic_actions(actions: Any) -> None:
    topics = _add(actions, "topics", _topics, "list the topics with their partitions, record counts and sizes")
    create = _add(actions, "create", _create, "create a topic")
    create.add_argument("topic")
    create.add_argument("--partitions", type=positive, default=1, help="number of partitions (1)")
    wrong, stopped = "a line is not a record, or is refused", "stopped by SIGTERM"
    produce = _add(actions, "produce", _produce, "write one record per line", _5=wrong, _143=stopped)
    kafka_produce.add_arguments(produce)
    consume = _add(actions, "consume", _consume, "print the records of a topic", _143=stopped)
    kafka_consume.add_arguments(consume)
    for each in (topics, create, produce, consume):
        add_access(each)
        each.add_argument("--dir", type=place, help="directory of the embedded broker (default: .downspout/kafka)")


def _add(actions: Any, name: str, action: Handler, text: str, **codes: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=sentence(text), epilog=exit_codes(4, **codes)
    )
    parser.set_defaults(handler=_translated(action))
    return parser


def _translated(action: Handler) -> Handler:
    """Convert errors of the client to a BrokerError."""

    @functools.wraps(action)
    def handler(arguments: argparse.Namespace) -> int:
        from kafka.errors import KafkaError

        from downspout.kafka.retry_gate import cure_of, describe

        try:
            return action(arguments)
        except KafkaError as error:
            cure = cure_of(error, "check whether the brokers run: `downspout kafka status` shows the local one")
            raise BrokerError(f"kafka {arguments.action}: {describe(error)[:300]}", cure=cure) from error

    return handler


# --- the broker ---


def _directory(arguments: argparse.Namespace) -> Path:
    from downspout.broker.embedded import default_directory

    return arguments.dir or default_directory()


def _start(arguments: argparse.Namespace) -> int:
    from downspout.broker.broker_files import BY_OPTIONS
    from downspout.broker.embedded import EmbeddedKafka

    kafka = EmbeddedKafka(
        _directory(arguments), arguments.port, detached=not arguments.foreground,
        security=BY_OPTIONS[arguments.tls, arguments.sasl is not None], mechanism=arguments.sasl,
    )  # fmt: skip
    status = kafka.status()
    if status.state == "running" and status.broker is not None and not arguments.foreground:
        if arguments.port not in (None, status.broker.port):
            raise BrokerError(
                f"Kafka is already running at {status.broker.bootstrap}",
                cure=f"`downspout kafka stop`, then `downspout kafka start --port {arguments.port}`",
            )
        kafka.check_security()
        print(f"Kafka is already running at {status.broker.bootstrap}{kafka.security.client_hint}")
        return 0
    if arguments.foreground:
        return _start_and_stay(kafka)
    _launch(kafka)
    return 0


def _launch(kafka: EmbeddedKafka) -> Broker:
    broker = kafka.start().broker
    where = f"{broker.bootstrap} (process {broker.pid}), with its data in {kafka.directory}"
    print(f"Kafka is running at {where}{kafka.security.client_hint}", flush=True)
    return broker


def _start_and_stay(kafka: EmbeddedKafka) -> int:
    """Run the broker until Ctrl-C or SIGTERM; it is an error if it ends by itself."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        broker = _launch(kafka)
        while broker.is_alive:
            SYSTEM_CLOCK.sleep(0.2)
    except KeyboardInterrupt:
        kafka.stop()
        print("Kafka is stopped")
        return 0
    raise BrokerError("Kafka ended unexpectedly", cure=f"read {kafka.directory}/logs/server.log")


def _stop(arguments: argparse.Namespace) -> int:
    from downspout.broker.embedded import EmbeddedKafka

    was_running = EmbeddedKafka(_directory(arguments)).stop()
    print("Kafka is stopped" if was_running else "Kafka was not running")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from downspout.broker.embedded import EmbeddedKafka

    status = EmbeddedKafka(_directory(arguments)).status()
    broker = status.broker
    if arguments.json:
        facts = {"state": status.state, "directory": str(status.directory)}
        if broker is not None:
            facts |= {"bootstrap": broker.bootstrap, "host": broker.host, "cluster_id": broker.cluster_id}
        numbers = {} if broker is None else {"port": broker.port, "pid": broker.pid}
        print(json.dumps({**facts, **numbers}))
    elif broker is None:
        print(f"Kafka is {status.state} ({status.directory})")
    else:
        print(f"Kafka is {status.state} at {broker.bootstrap} (process {broker.pid}, {status.directory})")
    return 0 if status.state == "running" else 1


# --- topics and records ---


def _way_in(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return brokers and client properties; ``--dir`` locates the embedded broker."""
    from downspout.broker.embedded import find_access
    from downspout.settings.secrets import resolve_client

    where, client = way_in(arguments)
    if where == "embedded":
        where, own = find_access(_directory(arguments))
        client = {**resolve_client(own), **client}
    return where, client


def _cluster(arguments: argparse.Namespace) -> KafkaCluster:
    from downspout.kafka.client import KafkaCluster, connection_properties

    where, client = _way_in(arguments)
    return KafkaCluster(where, connection_properties(client))


def _topics(arguments: argparse.Namespace) -> int:
    from downspout.kafka.port import TopicPartition

    cluster = _cluster(arguments)
    topics, sizes = cluster.topics(), cluster.topic_bytes()
    with closing(cluster.consumer(group=None)) as consumer:
        width = max(map(len, topics), default=0)
        for topic, count in topics.items():
            partitions = [TopicPartition(topic, number) for number in range(count)]
            begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            records = counted(sum(ends[each] - begins[each] for each in partitions), "offset")
            on_disk = size(sizes[topic]) if topic in sizes else "–"
            print(f"{topic:<{width}}  {counted(count, 'partition'):>15}  {records:>20}  {on_disk:>8}")
    return 0


def _create(arguments: argparse.Namespace) -> int:
    created = _cluster(arguments).ensure_topic(arguments.topic, arguments.partitions)
    print(f"topic {arguments.topic} created" if created else f"topic {arguments.topic} already exists")
    return 0


def _produce(arguments: argparse.Namespace) -> int:
    from downspout.kafka.clusters import cluster_for

    return kafka_produce.produce(arguments, lambda: cluster_for(*_way_in(arguments)))


def _consume(arguments: argparse.Namespace) -> int:
    from downspout.kafka.clusters import cluster_for

    return kafka_consume.consume(arguments, lambda: cluster_for(*_way_in(arguments)))
