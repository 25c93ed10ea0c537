r"""Records as lines of JSON, one record each, and back: what ``downspout kafka consume --json`` prints and
``produce --json`` reads. What is read is equal to what was printed, for any bytes.

::

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
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from downspout.kafka.port import Record
from downspout.producing.mapper import Headers, Outgoing, headers_of, timestamp_of

SPACE = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()


def visible(text: str) -> str:
    r"""Return JSON with each character escaped that a terminal may obey; it says the same as before.

    >>> print(visible('"ü\x7f\x9b2J"'))
    "ü\u007f\u009b2J"
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else json.dumps(character)[1:-1]


def json_text(data: bytes) -> str | None:
    r"""Return bytes that hold JSON as JSON on one line, numbers digit by digit; None if they hold none.

    A string or a null is none here: it would look like a text, or like no value at all.

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
    """Return the record that a line describes; ``topic`` and ``offset`` in it change nothing.

    Raises:
        ValueError: it is not such a line; says what is wrong.

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
        raise ValueError(f"it has {', '.join(sorted(map(repr, unknown)))}, and a record has only {', '.join(KNOWN)}")
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
        raise ValueError(f"it has {' and '.join(given)}, where one says what the {name} is")
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
    """Return the JSON of a member of an object as it stands in a text, which was parsed before; of several the last."""
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
