"""Lines as records: how ``downspout kafka produce`` sends them, and records as lines of JSON.

A line is sent like a tuple, through :class:`~downspout.producing.sending.Sending`: it counts as written when the broker
has answered, and errors name refused lines.

``downspout kafka consume --json`` prints one record per line, and ``produce --json`` reads them; any bytes survive the
round trip::

    {"topic":"t","partition":0,"offset":7,"timestamp":1700000000000,"key":"a","value":"text","headers":[["n","7"]]}

=============================  =====================================================================
``"value": "text"``            bytes that are UTF-8
``"value": null``              a null: with a key, a tombstone
``"value": {…}``, ``[…]``, 5   the bytes of that JSON, as it stands in the line
``"value_base64": "/w=="``     any bytes; ``value_hex`` likewise, and both also for the key
``["name", {"base64": "…"}]``  a header whose value is not UTF-8
=============================  =====================================================================
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kafka import errors

from downspout.clock import Clock
from downspout.errors import BrokerError, RecordError
from downspout.formatting import counted
from downspout.kafka.port import ProducerPort, Record
from downspout.producing.mapper import Headers, Outgoing, headers_of, timestamp_of
from downspout.producing.sending import ASYNCHRONOUS, Sending

STALL_S = 2.0
"""Once a line has waited this long for its answer, no others are accepted for a moment."""


class UnansweredError(BrokerError):
    """The brokers have not answered in time; the message names the lines."""


class LongLineError(ValueError):
    """A line is longer than any record may be."""


def split_lines(pieces: Iterator[bytes], size_max: int) -> Iterator[bytes]:
    r"""Yield the lines of a byte stream that comes in pieces, without their ends (LF or CRLF).

    Raises:
        LongLineError: a line has more than ``size_max`` bytes.

    >>> list(split_lines(iter([b"a\r\nb", b"c\n", b"\nd"]), 9))
    [b'a', b'bc', b'', b'd']
    """
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        first, *rest = piece.split(b"\n")
        held.append(first)
        size += len(first)
        if size > size_max:
            raise LongLineError(f"a line of more than {size_max:,} bytes")
        if rest:
            yield b"".join(held).removesuffix(b"\r")
            for line in rest[:-1]:
                yield line.removesuffix(b"\r")
            held, size = [rest[-1]], len(rest[-1])
    if size:
        yield b"".join(held).removesuffix(b"\r")


def plain_record(line: bytes, separator: bytes | None = None, *, tombstones: bool = False) -> Outgoing:
    """Return the record of a line: key and value, or the value alone.

    Args:
        line: without its end.
        separator: its first occurrence separates key and value.
        tombstones: an empty value is a null.

    Raises:
        ValueError: the separator is not in it.

    >>> plain_record(b"k=v=w", b"=")[:2], plain_record(b"a b")[:2], plain_record(b"k=", b"=", tombstones=True)[:2]
    ((b'k', b'v=w'), (None, b'a b'), (b'k', None))
    """
    key, value = None, line
    if separator is not None:
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"this line does not contain {separator.decode(errors='backslashreplace')!r}")
    return Outgoing(key, None if tombstones and not value else value)


class Line(NamedTuple):
    """A line on its way."""

    number: int  # from 1
    size: int  # bytes of key and value


class LineWriter:
    """Sends the lines of one source to one topic; it acts as the bolt of a :class:`Sending`.

    Args:
        producer: the port; :meth:`finish` closes it.
        topic: the topic of all lines.
        source: the name of the file, for errors.
        settings: the scope ``produce``.
        refused: called with the error of each line that is not written.
        clock: the time source.
    """

    component_name = ""  # errors begin with the line

    def __init__(
        self,
        producer: ProducerPort,
        topic: str,
        source: str,
        settings: Mapping[str, Any],
        refused: Callable[[RecordError], None],
        clock: Clock,
    ) -> None:
        self._topic, self._source, self._refused = topic, source, refused
        self._request_max: int = settings["request_bytes_max"]
        self.unanswered: list[int] = []  # numbers of lines
        self.sending = Sending(
            producer, self, clock, logging.getLogger("downspout.producing"), mode=ASYNCHRONOUS,
            buffer_bytes=settings["buffer_bytes"], age_s_max=STALL_S, one_topic=True,
        )  # fmt: skip

    def send(self, number: int, record: Outgoing, headers: Headers = (), partition: int | None = None) -> None:
        """Send the record of a line. ``headers`` are added; ``partition`` is used if the line names none.

        Raises:
            BrokerError: nothing can be written any more, or the brokers do not answer.
        """
        size = len(record.key or b"") + len(record.value or b"")
        record = record._replace(
            headers=[*headers, *record.headers], partition=partition if record.partition is None else record.partition
        )
        self.sending.send(Line(number, size), self._topic, record)
        self._check()

    def rest(self) -> None:
        """Send lingering records and process answers while the input is idle.

        Raises:
            BrokerError: as for :meth:`send`.
        """
        self.sending.hand_over()
        self._check()

    def finish(self, timeout_s: float) -> None:
        """Wait for all answers, at most ``timeout_s``, and release the producer.

        Raises:
            BrokerError: some did not come, or no record can be written any more.
        """
        self.sending.close(timeout_s)
        self._check()

    @property
    def refused(self) -> int:
        """How many lines the brokers have refused."""
        return self.sending.refused - len(self.unanswered)

    def _check(self) -> None:
        """Raise if lines got no answer in time: the next ones would get none either."""
        if not (lines := self.unanswered):
            return
        where = f"{self._source}:{min(lines)}" + (f" to {max(lines)}" if len(lines) > 1 else "")
        raise UnansweredError(
            f"{where}: the brokers have not answered in time for {counted(len(lines), 'record')}, which may have been "
            "written",
            cure=f"check whether the brokers run, look at the end of {self._topic}, and send what is missing",
        )

    # --- what Sending needs -----------------------------------------------------------------------------

    def ack_many(self, tups: Sequence[Any]) -> None:
        """Do nothing: Sending counts the written lines."""

    def fail_because(self, tup: Line, error: Exception) -> None:
        """Report a line that was not written."""
        cause = error.__context__
        if isinstance(cause, errors.KafkaTimeoutError | errors.IllegalStateError):  # the latter: at the end
            self.unanswered.append(tup.number)
            return
        if isinstance(cause, errors.MessageSizeTooLargeError):
            error = self._too_large(tup)
        assert isinstance(error, RecordError)
        self._refused(error)

    def _too_large(self, line: Line) -> RecordError:
        limit, cure = f"topic {self._topic}", f"a smaller record, or a higher max.message.bytes of {self._topic}"
        if line.size >= self._request_max:
            limit = f"a request, which holds {self._request_max:,}"
            cure = "a smaller record, with a reference to large data; or --set produce.request_bytes_max=…"
        return RecordError(
            f"{self.place_of(line, None)}a record of {line.size:,} bytes is too large for {limit}", cure=cure
        )

    def place_of(self, tup: Any, row: int | None) -> str:
        """Name a line."""
        return f"{self._source}:{tup.number}: "


# --- Records as lines of JSON ---


SPACE = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()


def visible(text: str) -> str:
    r"""Return equivalent JSON, with all characters escaped that may control a terminal.

    >>> print(visible('"ü\x7f\x9b2J"'))
    "ü\u007f\u009b2J"
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else json.dumps(character)[1:-1]


def json_text(data: bytes) -> str | None:
    r"""Return JSON bytes as JSON on one line, numbers digit by digit; None if they are not JSON.

    A string or null counts as no JSON: it would look like a text, or like a missing value.

    >>> json_text(b'{"a":\n 1.10}'), json_text(b'"a"'), json_text(b"NaN"), json_text(b"\xff")
    ('{"a":  1.10}', None, None, None)
    """
    try:
        text = data.decode().strip(" \t\r\n")
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):  # UnicodeDecodeError is one
        return None
    if found is None or isinstance(found, str):
        return None
    return text.replace("\n", " ").replace("\r", " ").replace("\t", " ")  # in strings they would be escaped


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


# --- a record as a line -------------------------------------------------------------------------------------


def line_of(record: Record, key_format: str = "utf8", value_format: str = "utf8") -> str:
    r"""Return a record as one line of JSON, without its end.

    >>> from collections import namedtuple
    >>> R = namedtuple("R", "topic partition offset timestamp key value headers")
    >>> print(line_of(R("t", 0, 7, -1, b"k", b"\xff", [("h", None)])))
    {"topic":"t","partition":0,"offset":7,"timestamp":null,"key":"k","value_base64":"/w==","headers":[["h",null]]}
    >>> print(line_of(R("t", 0, 7, 5, None, b'{"a":1}', []), value_format="json"))
    {"topic":"t","partition":0,"offset":7,"timestamp":5,"key":null,"value":{"a":1},"headers":[]}
    """
    place = f'{{"topic":{_dumps(record.topic)},"partition":{record.partition},"offset":{record.offset}'
    time = "null" if record.timestamp is None or record.timestamp < 0 else str(record.timestamp)
    headers = _dumps([[name, _header(data)] for name, data in record.headers])
    key, value = _member("key", record.key, key_format), _member("value", record.value, value_format)
    return visible(f'{place},"timestamp":{time},{key},{value},"headers":{headers}}}')


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _member(name: str, data: bytes | None, kind: str) -> str:
    if data is None:
        return f'"{name}":null'
    if kind == "hex":
        return f'"{name}_hex":"{data.hex()}"'
    if kind == "json" and (found := json_text(data)) is not None:
        return f'"{name}":{found}'
    if kind != "base64":
        try:
            return f'"{name}":{_dumps(data.decode())}'
        except UnicodeDecodeError:
            pass
    return f'"{name}_base64":"{base64.b64encode(data).decode()}"'


def _header(data: bytes | None) -> Any:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}


# --- a line as a record -------------------------------------------------------------------------------------


def record_of(line: bytes) -> Outgoing:
    """Return the record that a line describes; its ``topic`` and ``offset`` are ignored.

    Raises:
        ValueError: the line is malformed; says what is wrong.

    >>> record_of(b'{"key": "k", "value": {"price": 1.10}, "headers": {"trace": "7"}, "timestamp": 5}')
    Outgoing(key=b'k', value=b'{"price": 1.10}', headers=[('trace', b'7')], timestamp_ms=5, partition=None, topic=None)
    >>> record_of(b'{"key": "k"}')
    Traceback (most recent call last):
        ...
    ValueError: it has no value; null writes a null
    """
    try:
        text = line.decode()
        found = json.loads(text, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: byte {error.start + 1} is {line[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"it is not a JSON object, but {text.strip():.40}")
    if unknown := found.keys() - KNOWN:
        raise ValueError(f"it has {', '.join(sorted(map(repr, unknown)))}, but a record has only {', '.join(KNOWN)}")
    if not {"value", "value_base64", "value_hex"} & found.keys():
        raise ValueError("it has no value; null writes a null")
    partition = found.get("partition")
    if partition is not None and (type(partition) is not int or partition < 0):
        raise ValueError(f"the partition {partition!r:.40} is not a whole number of at least 0")
    return Outgoing(
        _bytes_of("key", found, text),
        _bytes_of("value", found, text),
        _headers_in(found.get("headers")),
        timestamp_of(found.get("timestamp")),
        partition,
    )


def _bytes_of(name: str, found: Mapping[str, Any], text: str) -> bytes | None:
    given = [each for each in (name, f"{name}_base64", f"{name}_hex") if each in found]
    if len(given) > 1:
        raise ValueError(f"it has {' and '.join(given)}, but only one of them may give the {name}")
    if not given:
        return None
    value = found[given[0]]
    if value is None:
        return None
    if given[0] != name:
        return _decoded(given[0], value, given[0].rpartition("_")[2])
    try:
        return (value if isinstance(value, str) else _raw(text, name)).encode()
    except UnicodeEncodeError:
        raise ValueError(f"the {name} has half of a surrogate pair, which is not a character") from None


def _raw(text: str, name: str) -> str:
    """Return the JSON text of an object's member from a text known to be valid; of several, the last."""
    at, found = SPACE.match(text, text.index("{") + 1).end(), ""  # type: ignore[union-attr]
    while text[at] != "}":
        key, at = DECODER.raw_decode(text, at)
        at = SPACE.match(text, at).end()  # type: ignore[union-attr]
        start = SPACE.match(text, at + 1).end()  # type: ignore[union-attr]
        _, at = DECODER.raw_decode(text, start)
        if key == name:
            found = text[start:at]
        at = SPACE.match(text, at).end()  # type: ignore[union-attr]
        if text[at] == ",":
            at = SPACE.match(text, at + 1).end()  # type: ignore[union-attr]
    return found


DECODERS: Mapping[str, Callable[[str], bytes]] = {
    "base64": lambda text: base64.b64decode(text, validate=True),
    "hex": bytes.fromhex,
}


def _decoded(name: str, value: Any, kind: str) -> bytes:
    try:
        return DECODERS[kind](value)
    except (ValueError, TypeError, binascii.Error):
        raise ValueError(f"{name} is not {kind}: {value!r:.40}") from None


def _headers_in(value: Any) -> Headers:
    if value is None:
        return ()
    pairs = value.items() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"the headers are neither an object nor a list of [name, value]: {value!r:.40}")
    try:
        return headers_of([(name, _header_of(name, data)) for name, data in pairs])
    except UnicodeEncodeError:
        raise ValueError("a header has half of a surrogate pair, which is not a character") from None


def _header_of(name: Any, data: Any) -> Any:
    if isinstance(data, dict) and len(data) == 1 and (kind := next(iter(data))) in DECODERS:
        return _decoded(f"the header {name!r:.40}", data[kind], kind)
    return data


KNOWN = (
    "key", "key_base64", "key_hex", "value", "value_base64", "value_hex", "headers", "partition", "timestamp", "topic",
    "offset",
)  # fmt: skip
