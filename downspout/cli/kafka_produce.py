"""``downspout kafka produce``: write lines of text or JSON as records."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from errno import EISDIR
from functools import partial
from typing import TYPE_CHECKING, Any

from downspout.cli.arguments import natural, positive
from downspout.cli.interrupts import StopRequest, stop_request
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import BrokerError, ConfigError, DownspoutError, RecordError
from downspout.formatting import counted, size

if TYPE_CHECKING:
    from downspout.kafka.port import Cluster
    from downspout.producing.lines import LineWriter
    from downspout.producing.mapper import Headers, Outgoing

PROGRESS_S = 1.0
REFUSED_SHOWN = 10
MESSAGE_TIMEOUT_S = 180
"""The equivalent of a topology's message timeout; a record is given up after two thirds of it without an answer."""
FINISH_S = 130.0
READ_BYTES = 1 << 16
LINGER_S, IDLE_S = 0.01, 0.2
LINE_SHARE = 8  # A line of JSON may be this many times longer than its record
SETTINGS = (
    "acks", "idempotence", "compression", "partitioner", "linger_ms", "batch_bytes", "request_bytes_max",
    "buffer_bytes",
)  # fmt: skip
"""Settings of KafkaBolt that apply here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("topic", help="topic to write to; it is created if it does not exist")
    parser.add_argument("file", nargs="?", help="file to read (default: standard input)")
    lines = parser.add_argument_group("format of a line")
    lines.add_argument("--key-separator", metavar="X", help="split each line into key and value at the first X")
    lines.add_argument(
        "--tombstones",
        action="store_true",
        help="with --key-separator: an empty value is a null, which deletes the key",
    )
    lines.add_argument(
        "--json", dest="json_lines", action="store_true",
        help="each line is an object with value and, if you like, key, headers, partition and timestamp, as "
        "`downspout kafka consume --json` prints it; a value of null is a tombstone",
    )  # fmt: skip
    lines.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="add this header; may be repeated"
    )
    where = parser.add_argument_group("partitions and delivery")
    where.add_argument("--partition", type=natural, help="write all to this partition, unless a line names another")
    where.add_argument(
        "--partitions", type=positive, default=1, help="number of partitions, if the topic does not exist yet (1)"
    )
    where.add_argument(
        "--partitioner", default="round_robin",
        help="how records without a partition are distributed: round_robin (the default) or sticky, which both use the "
        "key if there is one; or module.function",
    )  # fmt: skip
    where.add_argument(
        "--acks", choices=["all", "1", "0"], default="all", help="replicas that must have a record (all)"
    )
    where.add_argument(
        "--compression", choices=["none", "gzip", "snappy", "lz4", "zstd"], default="none", help="codec (none)"
    )
    where.add_argument("--rate", type=positive, metavar="N", help="write at most N records per second")
    where.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
        help="another setting of KafkaBolt, such as produce.linger_ms=100; may be repeated",
    )  # fmt: skip


def produce(arguments: argparse.Namespace, cluster: Callable[[], Cluster], clock: Clock = SYSTEM_CLOCK) -> int:
    """Write the lines; return the exit code."""
    settings, parse, headers = _settings(arguments), _parser(arguments), _headers(arguments.header)
    with _opened(arguments.file) as (source, descriptor), stop_request() as stop:
        writer = _writer(arguments, cluster(), source, settings, clock)
        run = _Run(writer, source, descriptor, stop, Pace(arguments.rate, clock), clock)
        error = run.write(partial(_record, parse, source), headers, arguments.partition, settings["request_bytes_max"])
    return _report(arguments.topic, run, stop, error)


# --- the options ---


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the scope ``produce``, checked."""
    from downspout.producing.settings import check, produce_settings

    given = {"acks": arguments.acks, "compression": arguments.compression, "partitioner": arguments.partitioner}
    for pair in arguments.overrides:
        key, equals, value = pair.partition("=")
        name = key.strip().removeprefix("produce.")
        if not equals or name not in SETTINGS:
            raise ConfigError(f"--set {pair}: no such setting", cure=f"produce.NAME=VALUE with {', '.join(SETTINGS)}")
        given[name] = value
    conf = {f"produce.{name}": value for name, value in given.items()} | {"produce.topic": arguments.topic}
    check(conf)  # which warns if idempotence must be off
    settings = produce_settings(conf)
    if settings["acks"] != "all":
        settings["idempotence"] = False
    return settings


def _parser(arguments: argparse.Namespace) -> Callable[[bytes], Outgoing]:
    from downspout.producing.lines import plain_record, record_of

    separator = arguments.key_separator
    if separator == "":
        raise ConfigError("--key-separator is empty", cure="one character, such as a tab")
    if arguments.json_lines:
        if separator is not None or arguments.tombstones:
            other = "--key-separator" if separator is not None else "--tombstones"
            raise ConfigError(f"--json and {other}: a line of JSON names its parts", cure="one of them")
        return record_of
    if arguments.tombstones and separator is None:
        raise ConfigError("--tombstones needs keys to delete", cure="--key-separator, or --json with null values")
    return partial(
        plain_record, separator=None if separator is None else os.fsencode(separator), tombstones=arguments.tombstones
    )


def _headers(pairs: list[str]) -> Headers:
    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--header {pair}: it has no name, or no value", cure="--header source=import")
        found.append((name, os.fsencode(value)))
    return found


def _record(parse: Callable[[bytes], Outgoing], source: str, number: int, line: bytes) -> Outgoing:
    try:
        return parse(line)
    except ValueError as error:
        cure = "correct this line, and send the file again from here: nothing after it was sent"
        raise RecordError(f"{source}:{number}: {error}", cure=cure) from None


def _writer(
    arguments: argparse.Namespace, cluster: Cluster, source: str, settings: dict[str, Any], clock: Clock
) -> LineWriter:
    from downspout.producing.lines import LineWriter
    from downspout.producing.settings import producer_client

    _make_topic(cluster, arguments.topic, arguments.partitions, arguments.partition)
    producer = cluster.producer(
        client=producer_client(settings, {}, MESSAGE_TIMEOUT_S), partitioner=settings["partitioner"]
    )
    shown = 0

    def refused(error: RecordError) -> None:
        nonlocal shown
        shown += 1
        if shown <= REFUSED_SHOWN:
            _say(f"downspout: {error}")
        elif shown == REFUSED_SHOWN + 1:
            _say("downspout: more lines are refused; the summary counts them")

    return LineWriter(producer, arguments.topic, source, settings, refused, clock)


def _make_topic(cluster: Cluster, topic: str, partitions: int, partition: int | None) -> None:
    """Create the topic if it does not exist; an existing one needs no permission to create."""
    with closing(cluster.consumer(group=None)) as consumer:
        found = len(consumer.partitions_for(topic))
    count = found or partitions
    if partition is not None and partition >= count:
        raise ConfigError(
            f"--partition {partition}: {topic} has {counted(count, 'partition')}, numbered from 0",
            cure=f"a partition below {count}",
        )
    if not found and cluster.ensure_topic(topic, partitions):
        _say(f"topic {topic} created with {counted(partitions, 'partition')}")


@contextmanager
def _opened(file: str | None) -> Iterator[tuple[str, int]]:
    if file is None or file == "-":
        yield "stdin", sys.stdin.fileno()
        return
    try:
        if os.path.isdir(file):  # open would succeed, but not read
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise DownspoutError(f"{file} cannot be read: {error.strerror}", cure="another file") from None
    try:
        yield file, descriptor
    finally:
        os.close(descriptor)


# --- the work ---


class _Run:
    """Passes lines from a descriptor to the writer; handles answers and shows progress while waiting for input."""

    def __init__(
        self, writer: LineWriter, source: str, descriptor: int, stop: StopRequest, pace: Pace, clock: Clock
    ) -> None:
        self.sending, self.writer = writer.sending, writer
        self._source, self._descriptor, self._stop, self._pace = source, descriptor, stop, pace
        self._progress = ProduceProgress(clock, wanted=not os.isatty(descriptor))
        self.line = 0

    def write(
        self, parse: Callable[[int, bytes], Outgoing], headers: Headers, partition: int | None, record_bytes_max: int
    ) -> DownspoutError | None:
        """Write lines until one is invalid or a stop is requested; return the error, if any."""
        from downspout.producing.lines import LongLineError, split_lines

        error: DownspoutError | None = None
        try:
            for line in split_lines(self._pieces(), LINE_SHARE * record_bytes_max):
                # The line may be incomplete if the request to stop came before its end.
                if self._stop.signal or not self._pace.wait(self._rest):
                    break
                self.writer.send(self.line + 1, parse(self.line + 1, line), headers, partition)
                self.line += 1
                self._progress.show(self.sending)
        except LongLineError as long:
            error = RecordError(f"{self._source}:{self.line + 1}: {long}", cure="one record to a line")
        except OSError as failed:
            error = DownspoutError(f"{self._source} cannot be read: {failed.strerror}", cure="another file")
        except DownspoutError as failed:
            error = failed
        return self._finish(error)

    def _pieces(self) -> Iterator[bytes]:
        """Yield available input until its end or a request to stop."""
        while True:
            wait_s = 0.0
            while not select.select([self._descriptor], [], [], wait_s)[0]:
                if not self._rest():
                    return
                wait_s = LINGER_S if self.sending.in_flight else IDLE_S
            piece = os.read(self._descriptor, READ_BYTES)
            if not piece:
                return
            yield piece

    def _rest(self) -> bool:
        """Handle answers; return False after a request to stop."""
        self.writer.rest()
        self._progress.show(self.sending)
        return not self._stop.signal

    def _finish(self, error: DownspoutError | None) -> DownspoutError | None:
        """Wait for answers; return ``error``, or else one that occurs meanwhile."""
        from downspout.producing.lines import UnansweredError

        if self._stop.signal and self.sending.in_flight:
            self._progress.end()
            waiting = counted(self.sending.in_flight, "record")
            _say(f"downspout: waiting for the answers to {waiting}; {self._stop} again ends at once")
        try:
            self.writer.finish(0.0 if isinstance(error, BrokerError) else FINISH_S)
        except BrokerError as late:  # unlike the first one, it names all lines without an answer
            error = late if error is None or isinstance(error, UnansweredError) else error
        except KeyboardInterrupt:  # the second request: the rest may or may not be written
            with suppress(BrokerError):
                self.writer.finish(0.0)
        self._progress.end()
        return error


def _report(topic: str, run: _Run, stop: StopRequest, error: DownspoutError | None) -> int:
    """Print a summary; return the exit code.

    Raises:
        DownspoutError: ``error``.
    """
    sending = run.sending
    written = f"{counted(sending.sent, 'record')} written to {topic}"
    if sending.unknown:
        written = f"{counted(sending.unknown, 'record')} sent to {topic}; with acks=0, brokers do not confirm records"
    refused, unanswered = run.writer.refused, len(run.writer.unanswered)
    written += f", {refused:,} refused" if refused else ""
    print(written + (f", {unanswered:,} without an answer" if unanswered else ""), flush=True)
    if error is not None:
        raise error
    if stop.signal:
        _say(f"downspout: stopped by {stop} after line {run.line:,}")
        return stop.exit_code
    return RecordError.exit_code if refused else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Pace:
    """Limits the rate of records, if one is given.

    >>> from downspout.testing import VirtualClock
    >>> pace = Pace(10, clock := VirtualClock())
    >>> [pace.wait(lambda: True) for _ in range(11)][-1], round(clock.monotonic(), 3)
    (True, 1.0)
    """

    def __init__(self, rate: int | None, clock: Clock) -> None:
        self._rate, self._clock = rate, clock
        self._start, self._count = clock.monotonic(), 0

    def wait(self, rest: Callable[[], bool]) -> bool:
        """Wait until the next record is due, calling ``rest`` meanwhile; return False as soon as ``rest`` does."""
        if self._rate is None:
            return True
        due = self._start + self._count / self._rate
        self._count += 1
        while (left := due - self._clock.monotonic()) > 0:
            if not rest():
                return False
            self._clock.sleep(min(left, LINGER_S))
        return True


class ProduceProgress:
    """Progress on stderr: one updated line on a terminal, elsewhere increasingly rare lines."""

    def __init__(self, clock: Clock, *, wanted: bool) -> None:
        self._clock, self._wanted = clock, wanted
        self._start = clock.monotonic()
        self._pause = PROGRESS_S
        self._next = self._start + self._pause
        self._calls = self._done = 0
        self._is_terminal = sys.stderr.isatty()
        self._shown = False

    def show(self, sending: Any) -> None:
        """Show progress once a second; reads the clock only at every 16th call."""
        self._calls += 1
        if self._calls & 15 or not self._wanted or (now := self._clock.monotonic()) < self._next:
            return
        done = sending.sent + sending.unknown
        if done == self._done and not sending.in_flight and not self._is_terminal:
            return
        self._done = done
        line = f"{counted(done, 'record')} written, {done / (now - self._start):,.0f}/s, {size(sending.bytes)}"
        line += f", {sending.in_flight:,} without an answer" if sending.in_flight else ""
        line += f", {sending.refused:,} refused" if sending.refused else ""
        text, end = (f"\r{line}\x1b[K", "") if self._is_terminal else (line, "\n")
        print(text, end=end, file=sys.stderr, flush=True)
        self._shown = True
        self._pause = self._pause if self._is_terminal else min(2 * self._pause, 60.0)
        self._next = now + self._pause

    def end(self) -> None:
        """Clear the line."""
        if self._shown and self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._shown = self._wanted = False
