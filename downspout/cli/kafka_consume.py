"""``downspout kafka consume``: print the records of a topic, as text or lines of JSON."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TextIO

from downspout.cli.arguments import natural, positive
from downspout.cli.interrupts import stop_request
from downspout.cli.terminal import as_text, parse_time, printable, stamp, write_bytes
from downspout.errors import ConfigError, coordinates
from downspout.formatting import counted

if TYPE_CHECKING:
    from downspout.kafka.port import Cluster, Record
    from downspout.kafka.scan import LogPoint

FORMATS = ("utf8", "json", "base64", "hex")  # data not in the format is shown as text or base64
PLACES = "beginning, end, an offset, or a time such as 2026-01-31T12:00 (UTC)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("topic", help="topic to read")
    which = parser.add_argument_group("which records")
    which.add_argument("--partition", type=natural, help="only this partition (default: all, one after the other)")
    which.add_argument(
        "--from", "--offset", dest="start", metavar="WHERE",
        help=f"where to begin: {PLACES} (default: the beginning, or the group's position)",
    )  # fmt: skip
    which.add_argument(
        "--until", metavar="WHERE",
        help="where to stop in each partition: the current end (the default), or the offset or time of the first "
        "record not to print",
    )  # fmt: skip
    which.add_argument("--follow", action="store_true", help="wait for further records, until Ctrl-C")
    which.add_argument("--max", "--limit", dest="limit", type=positive, metavar="N", help="stop after N records")
    which.add_argument(
        "--group", help="start at the position of this consumer group, and commit what is printed (default: no group)"
    )
    which.add_argument(
        "--isolation", choices=["read_committed", "read_uncommitted"], default="read_committed",
        help="read_committed (the default) skips records of open and aborted transactions",
    )  # fmt: skip
    how = parser.add_argument_group("how they are printed")
    how.add_argument(
        "--json", dest="json_lines", action="store_true",
        help="one object per line, which `downspout kafka produce --json` takes",
    )  # fmt: skip
    how.add_argument(
        "--raw",
        action="store_true",
        help="only values, unchanged, each with a newline (escaped on a terminal)",
    )
    how.add_argument("--format", choices=FORMATS, default="utf8", help="how values are shown (utf8)")
    how.add_argument("--key-format", choices=FORMATS, default="utf8", help="how keys are shown (utf8)")


def consume(arguments: argparse.Namespace, cluster: Callable[[], Cluster]) -> int:
    """Print the records; return the exit code."""
    from downspout.kafka.scan import TopicReader
    from downspout.offsets.group_offsets import refuse_members

    start, until = _places(arguments)
    write = _writer(arguments, sys.stdout)
    brokers = cluster()
    if arguments.group is not None:
        refuse_members(brokers, arguments.group)
    with (
        stop_request() as stop,
        TopicReader(
            brokers, arguments.topic, partition=arguments.partition, group=arguments.group, start=start, until=until,
            limit=arguments.limit, isolation=arguments.isolation, note=_note,
        ) as reader,
    ):  # fmt: skip
        printed = 0
        for records in reader.batches(lambda: bool(stop.signal)):
            write(records)
            printed += len(records)
    print(counted(printed, "record") + (f", stopped by {stop}" if stop.signal else ""), file=sys.stderr)
    return stop.exit_code if stop.signal else 0


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


def _places(arguments: argparse.Namespace) -> tuple[LogPoint | None, LogPoint | None]:
    """Return start and end; None means the group's position, and no end."""
    from downspout.kafka.scan import END

    if arguments.follow and arguments.until is not None:
        raise ConfigError("--follow and --until contradict each other", cure="one of them")
    start = None if arguments.start is None else parse_place("--from", arguments.start)
    if arguments.until is None:
        return start, None if arguments.follow else END
    return start, parse_place("--until", arguments.until)


def parse_place(option: str, text: str) -> LogPoint:
    """Parse a point in a log; a number is an offset.

    >>> parse_place("--from", "17"), parse_place("--from", "1970-01-01T00:00:01")
    (LogPoint(kind='offset', value=17), LogPoint(kind='time', value=1000))
    """
    from downspout.kafka.scan import BEGINNING, END, LogPoint

    if text in ("beginning", "end"):
        return BEGINNING if text == "beginning" else END
    if re.fullmatch(r"[0-9]{1,18}", text):
        return LogPoint("offset", int(text))
    try:
        return LogPoint("time", parse_time(option, text))
    except ConfigError:
        raise ConfigError(f"{option} {text} is not a position in a topic", cure=PLACES) from None


# --- printing ---


def _writer(arguments: argparse.Namespace, out: TextIO) -> Callable[[Sequence[Record]], None]:
    """Return the function that prints records, and returns once they are written."""
    if arguments.raw and (arguments.json_lines or arguments.format != "utf8"):
        other = "--json" if arguments.json_lines else "--format"
        raise ConfigError(f"--raw and {other}: raw values have no format", cure="one of them")
    if arguments.raw:
        line = _raw_escaped if out.isatty() else _raw
    elif arguments.json_lines:
        from downspout.producing.lines import line_of

        def line(record: Record) -> bytes:
            return line_of(record, arguments.key_format, arguments.format).encode()
    else:
        encoding = out.encoding or "utf-8"
        show = partial(render, key_format=arguments.key_format, value_format=arguments.format)

        def line(record: Record) -> bytes:
            return show(record).encode(encoding, "backslashreplace")

    def write(records: Sequence[Record]) -> None:
        if records:
            write_bytes(b"".join(line(record) + b"\n" for record in records), out)

    return write


def _raw(record: Record) -> bytes:
    return record.value or b""


def _raw_escaped(record: Record) -> bytes:
    return printable(as_text(record.value, null="") or "", keep="\t\n").encode()


def render(record: Record, key_format: str = "utf8", value_format: str = "utf8") -> str:
    """Return a record as one line: coordinates, time, key, value, headers; bytes that are not text are escaped.

    >>> from collections import namedtuple
    >>> R = namedtuple("R", "topic partition offset timestamp key value headers")
    >>> render(R("t", 0, 7, 0, b"k", b"\\xffv", [("h", b"1")]))
    't[0]@7  1970-01-01T00:00:00.000Z  k  \\\\xffv  {h: 1}'
    >>> render(R("t", 0, 8, -1, None, b"ab", []), value_format="hex")
    't[0]@8  -  null  6162'
    """
    key, value = _shown(record.key, key_format), _shown(record.value, value_format)
    time = stamp(record.timestamp, timespec="milliseconds")
    parts = [coordinates(record.topic, record.partition, record.offset), time, key, value]
    if record.headers:
        parts.append("{" + ", ".join(f"{name}: {as_text(data, null='null')}" for name, data in record.headers) + "}")
    return printable("  ".join(parts), keep="\t")


def _shown(data: bytes | None, kind: str) -> str:
    if data is None:
        return "null"
    if kind == "hex":
        return data.hex()
    if kind == "base64":
        from base64 import b64encode

        return b64encode(data).decode()
    if kind == "json":
        from downspout.producing.lines import json_text

        return json_text(data) or str(as_text(data))
    return str(as_text(data))
