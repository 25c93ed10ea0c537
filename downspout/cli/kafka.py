"""``downspout kafka``: the embedded broker, and a look at what is in it.

``start``, ``stop`` and ``status`` are about the broker of a directory; ``topics``, ``create``, ``produce`` and
``consume`` work on any brokers (``--bootstrap``). Results go to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from downspout.cli.access import add_access, way_in
from downspout.cli.printing import printable
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import BrokerError, ConfigError, DownspoutError, RecordError, coordinates
from downspout.wording import counted

if TYPE_CHECKING:
    from downspout.kafka.broker_files import Broker
    from downspout.kafka.client import KafkaCluster
    from downspout.kafka.embedded import EmbeddedKafka
    from downspout.kafka.port import ConsumerPort, Record

Handler = Callable[[argparse.Namespace], int]

PROGRESS_S = 1.0
POLL_MS = 500
IDLE_POLLS_MAX = 20


def add_parser(commands: Any) -> None:
    """Add the command with its subcommands."""
    parser = commands.add_parser("kafka", help="run the embedded Kafka, look at topics, write and read records")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_broker_actions(actions)
    _add_topic_actions(actions)


def _add_broker_actions(actions: Any) -> None:
    start = _add(actions, "start", _start, "start the broker in the background and wait until it answers")
    start.add_argument("--port", type=_port, help="its port; otherwise the one it had before, or any free one")
    start.add_argument("--tls", action="store_true", help="speak TLS; chosen when the directory is made")
    start.add_argument(
        "--sasl", choices=["plain", "scram-sha-256", "scram-sha-512"], help="ask for a password; likewise"
    )
    start.add_argument("--foreground", action="store_true", help="stay until Ctrl-C and stop the broker then")
    status = _add(actions, "status", _status, "say whether the broker runs; the exit code is 1 if it does not")
    status.add_argument("--json", action="store_true", help="as one JSON object")
    for each in (start, status, _add(actions, "stop", _stop, "stop the broker; its data stay")):
        each.add_argument("--dir", type=Path, help="its directory; otherwise .downspout/kafka")


def _add_topic_actions(actions: Any) -> None:
    topics = _add(actions, "topics", _topics, "list the topics with their partitions and record counts")
    create = _add(actions, "create", _create, "create a topic")
    create.add_argument("topic")
    create.add_argument("--partitions", type=_positive, default=1)
    produce = _add(actions, "produce", _produce, "write one record per line")
    produce.add_argument("topic")
    produce.add_argument("file", nargs="?", help="what to read; otherwise standard input")
    produce.add_argument("--key-separator", metavar="X", help="the key is what stands before the first X of the line")
    produce.add_argument("--partitions", type=_positive, default=1, help="if the topic is missing, it gets that many")
    consume = _add(actions, "consume", _consume, "show the records that are there now, with their coordinates")
    consume.add_argument("topic")
    consume.add_argument("--partition", type=_natural, help="only this one")
    consume.add_argument("--offset", type=_natural, help="where to start; otherwise at the beginning")
    consume.add_argument("--limit", type=_positive, help="stop after that many records")
    for each in (topics, create, produce, consume):
        add_access(each)
        each.add_argument("--dir", type=Path, help="directory of the embedded broker; otherwise .downspout/kafka")


def _add(actions: Any, name: str, action: Handler, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text.capitalize() + ".")
    parser.set_defaults(handler=_translated(action))
    return parser


def _translated(action: Handler) -> Handler:
    """Let what the client raises be an error for users."""

    @functools.wraps(action)
    def handler(arguments: argparse.Namespace) -> int:
        from kafka.errors import KafkaError

        try:
            return action(arguments)
        except KafkaError as error:
            text = str(error).partition("\n")[0][:300]
            raise BrokerError(f"kafka {arguments.action}: {text}", cure="`downspout kafka status`") from error

    return handler


def _number(text: str, low: int, high: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} to {high}")
    return int(text)


def _port(text: str) -> int:
    return _number(text, 1, 65535)


def _positive(text: str) -> int:
    return _number(text, 1, 2**31 - 1)


def _natural(text: str) -> int:
    return _number(text, 0, 2**63 - 1)


# --- the broker ---


def _directory(arguments: argparse.Namespace) -> Path:
    from downspout.kafka.embedded import default_directory

    return arguments.dir or default_directory()


def _start(arguments: argparse.Namespace) -> int:
    from downspout.kafka.broker_security import BY_OPTIONS
    from downspout.kafka.embedded import EmbeddedKafka

    kafka = EmbeddedKafka(
        _directory(arguments), arguments.port, detached=not arguments.foreground,
        security=BY_OPTIONS[arguments.tls, arguments.sasl is not None], mechanism=arguments.sasl,
    )  # fmt: skip
    status = kafka.status()
    if status.state == "running" and status.broker is not None and not arguments.foreground:
        if arguments.port not in (None, status.broker.port):
            raise BrokerError(
                f"Kafka runs already, at {status.broker.bootstrap}",
                cure=f"`downspout kafka stop`, then `downspout kafka start --port {arguments.port}`",
            )
        kafka.check_security()
        print(f"Kafka runs already, at {status.broker.bootstrap}{kafka.security.told}")
        return 0
    if arguments.foreground:
        return _start_and_stay(kafka)
    _launch(kafka)
    return 0


def _launch(kafka: EmbeddedKafka) -> Broker:
    broker = kafka.start().broker
    where = f"{broker.bootstrap} (process {broker.pid}); its data are in {kafka.directory}"
    print(f"Kafka answers at {where}{kafka.security.told}", flush=True)
    return broker


def _start_and_stay(kafka: EmbeddedKafka, clock: Clock = SYSTEM_CLOCK) -> int:
    """Wait for Ctrl-C or SIGTERM, then stop the broker; if it ends by itself, that is an error."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        broker = _launch(kafka)
        while broker.is_alive:
            clock.sleep(0.2)
    except KeyboardInterrupt:
        kafka.stop()
        print("Kafka is stopped")
        return 0
    raise BrokerError("Kafka has ended by itself", cure=f"read {kafka.directory}/logs/server.log")


def _stop(arguments: argparse.Namespace) -> int:
    from downspout.kafka.embedded import EmbeddedKafka

    was_running = EmbeddedKafka(_directory(arguments)).stop()
    print("Kafka is stopped" if was_running else "Kafka was not running")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from downspout.kafka.embedded import EmbeddedKafka

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


def _cluster(arguments: argparse.Namespace) -> KafkaCluster:
    from downspout.config import resolve_client
    from downspout.kafka.client import KafkaCluster, connection_properties
    from downspout.kafka.embedded import find_access

    where, client = way_in(arguments)
    if where == "embedded":
        where, own = find_access(_directory(arguments))
        client = {**resolve_client(own), **client}
    return KafkaCluster(where, connection_properties(client))


def _topics(arguments: argparse.Namespace) -> int:
    from downspout.kafka.port import TopicPartition

    cluster = _cluster(arguments)
    topics = cluster.topics()
    consumer = cluster.consumer(group=None)
    try:
        width = max(map(len, topics), default=0)
        for topic, count in topics.items():
            partitions = [TopicPartition(topic, number) for number in range(count)]
            begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            records = sum(ends[each] - begins[each] for each in partitions)
            print(f"{topic:<{width}}  {count:>4} partitions  {records:>12,} offsets")
    finally:
        consumer.close()
    return 0


def _create(arguments: argparse.Namespace) -> int:
    created = _cluster(arguments).ensure_topic(arguments.topic, arguments.partitions)
    print(f"{arguments.topic} is created" if created else f"{arguments.topic} exists already")
    return 0


def _produce(arguments: argparse.Namespace) -> int:
    cluster = _cluster(arguments)
    separator = arguments.key_separator.encode() if arguments.key_separator is not None else None
    if separator == b"":
        raise ConfigError("--key-separator is empty", cure="one character, such as a tab")
    with _opened(arguments.file) as (name, lines):
        cluster.ensure_topic(arguments.topic, arguments.partitions)
        consumer = cluster.consumer(group=None)
        count = len(consumer.partitions_for(arguments.topic))
        consumer.close()
        producer = cluster.producer(client={"linger_ms": 20})
        progress = Progress("records")
        try:
            for number, line in enumerate(lines):
                key, value = split_line(line, separator, f"{name}:{number + 1}")
                producer.send(arguments.topic, key=key, value=value, partition=number % count if key is None else None)
                progress.add()
        finally:  # what was read before a bad line, or before Ctrl-C, is written
            producer.flush()
            producer.close()
            progress.end()
    print(f"{counted(progress.count, 'record')} {'is' if progress.count == 1 else 'are'} in {arguments.topic}")
    return 0


def split_line(line: bytes, separator: bytes | None, place: str) -> tuple[bytes | None, bytes]:
    r"""Return key and value of a line, without its end.

    Raises:
        RecordError: the separator is not in it.

    >>> split_line(b"a b\r\n", None, "x:1"), split_line(b"k=v=w\n", b"=", "x:1")
    ((None, b'a b'), (b'k', b'v=w'))
    """
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if separator is None:
        return None, text
    key, found, value = text.partition(separator)
    if not found:
        raise RecordError(f"{place}: there is no {separator.decode()!r} in this line", cure="another --key-separator")
    return key, value


@contextmanager
def _opened(file: str | None) -> Iterator[tuple[str, BinaryIO]]:
    if file is None or file == "-":
        yield "stdin", sys.stdin.buffer
        return
    try:
        opened = open(file, "rb")  # noqa: SIM115 (closed below; errors while reading are not errors of opening)
    except OSError as error:
        raise DownspoutError(f"{file} cannot be read: {error.strerror}", cure="another file") from None
    with opened:
        yield file, opened


class Progress:
    """A count with its rate on stderr, once a second; on a terminal it stays on one line, elsewhere lines get rarer."""

    def __init__(self, unit: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.count = 0
        self._unit = unit
        self._clock = clock
        self._start = clock.monotonic()
        self._pause = PROGRESS_S
        self._next = self._start + self._pause
        self._is_terminal = sys.stderr.isatty()
        self._shown = False

    def add(self) -> None:
        """Count one; looks at the clock only at every 256th."""
        self.count += 1
        if self.count & 255 == 0 and (now := self._clock.monotonic()) >= self._next:
            rate = self.count / (now - self._start)
            line = f"{self.count:,} {self._unit}, {rate:,.0f}/s"
            print(
                f"\r{line}\x1b[K" if self._is_terminal else line, end="" if self._is_terminal else "\n", file=sys.stderr
            )
            sys.stderr.flush()
            self._shown = True
            self._pause = self._pause if self._is_terminal else min(2 * self._pause, 60.0)
            self._next = now + self._pause

    def end(self) -> None:
        """Leave the line."""
        if self._shown and self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _consume(arguments: argparse.Namespace) -> int:
    consumer = _cluster(arguments).consumer(group=None)
    try:
        shown = 0
        for record in _records(consumer, arguments):
            print(render(record))
            shown += 1
            if shown == arguments.limit:
                break
        print(counted(shown, "record"), file=sys.stderr)
    finally:
        consumer.close()
    return 0


def _records(consumer: ConsumerPort, arguments: argparse.Namespace) -> Iterator[Record]:
    """Yield what is there as of now, one partition after the other."""
    from downspout.kafka.port import TopicPartition

    topic = arguments.topic
    numbers = consumer.partitions_for(topic)
    if not numbers:
        raise BrokerError(f"There is no topic {topic}", cure="`downspout kafka topics`")
    if arguments.partition is not None and arguments.partition not in numbers:
        raise BrokerError(
            f"{coordinates(topic, arguments.partition)} does not exist", cure=f"a partition below {len(numbers)}"
        )
    chosen = sorted(numbers) if arguments.partition is None else [arguments.partition]
    partitions = [TopicPartition(topic, number) for number in chosen]
    begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    for partition in partitions:
        consumer.assign([partition])
        consumer.seek(partition, max(begins[partition], arguments.offset or 0))
        idle = 0
        while (position := consumer.position(partition)) < ends[partition] and idle < IDLE_POLLS_MAX:
            yield from consumer.poll(POLL_MS, 500).get(partition, ())
            idle = idle + 1 if consumer.position(partition) == position else 0


def render(record: Record) -> str:
    """Return a record as one line: coordinates, time, key, value, headers; bytes that are no text are escaped.

    >>> from collections import namedtuple
    >>> R = namedtuple("R", "topic partition offset timestamp key value headers")
    >>> render(R("t", 0, 7, 0, b"k", b"\\xffv", [("h", b"1")]))
    't[0]@7  1970-01-01T00:00:00.000Z  k  \\\\xffv  {h: 1}'
    >>> render(R("t", 0, 8, -1, None, None, []))
    't[0]@8  -  null  null'
    """
    parts = [coordinates(record.topic, record.partition, record.offset), _stamp(record.timestamp)]
    parts += [_text(record.key), _text(record.value)]
    if record.headers:
        parts.append("{" + ", ".join(f"{name}: {_text(value)}" for name, value in record.headers) + "}")
    return printable("  ".join(parts), keep="\t")


def _text(data: bytes | None) -> str:
    return "null" if data is None else data.decode("utf-8", errors="backslashreplace")


def _stamp(timestamp_ms: int) -> str:
    from datetime import UTC, datetime, timedelta

    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
