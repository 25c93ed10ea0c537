r"""Values on Storm's pipe: plain JSON travels unchanged, any other value as a text that begins with a mark.

====================================  ==================================  ====================================
value                                 on the pipe                         arrives as
====================================  ==================================  ====================================
None, bool, int of any size, text     plain JSON                          the same
finite float                          plain JSON                          the same, to the bit
list, dict with text keys             plain JSON                          the same; a dict may change its order
tuple, namedtuple                     a list                              a list
``Origin`` in a field ``origin``      a list                              an ``Origin``
bytes, bytearray, memoryview          ``"\0bytes:"`` and base64           bytes
NaN, infinities                       ``"\0float:nan"``, ``inf``          the same
Decimal                               ``"\0decimal:1.50"``                the same, digits and all
datetime, date, time                  ``"\0datetime:"`` and ISO 8601      the same; a zone becomes its offset
text with NUL in front, or with       ``"\0text:"`` and base64            the same
lone surrogates
dict with other keys                  ``{"\0dict": [[key, value], …]}``   the same
====================================  ==================================  ====================================

Texts that begin with NUL hardly exist, so a component that does not know this encoding reads and writes plain values. A
UUID arrives as its text, an Enum as its value, a numpy scalar as Python's, a time without its ``fold``, and the NaT of
pandas and numpy as None. Emitting any other value, such as a time with nanoseconds, is an error.

Between two workers Storm sends tuples by Kryo, which knows texts (hence texts, not objects) but refuses classes that
are not registered, and ends the worker. In the JVM, Storm's JSON parser creates objects of its own for lists, dicts and
floats of 17 digits; :data:`KRYO` registers their classes. Nimbus adds the registrations of the topology and its
components (``Nimbus.normalizeConf``), so a spout can register them for its topology.
"""

from __future__ import annotations

import datetime as dt
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any
from uuid import UUID

try:
    import orjson as _orjson
except ImportError:  # a worker that has only streamparse and this package
    orjson: Any = None
else:
    orjson = _orjson

KRYO_CLASSES = (
    "org.apache.storm.shade.net.minidev.json.JSONArray",
    "org.apache.storm.shade.net.minidev.json.JSONObject",
    "java.math.BigDecimal",
)
"""The classes of a list, a dict and such a float in the JVM of Storm 2.8."""
KRYO = {"topology.kryo.register": list(KRYO_CLASSES)}
"""The configuration that registers them, for a topology, a component or a cluster."""
MARK = "\0"
QUOTED_MARK = rb'"\u0000'  # The mark at the beginning of a JSON text, from any writer
DICT = MARK + "dict"
BASES: tuple[Callable[[Any], Any], ...] = (str, int, float, list, dict)  # A value of a subclass travels as one of these
DIGITS = bytes(ord("0") if chr(byte) in "-0123456789" else byte for byte in range(256))
LONG_NUMBER = b"0" * 20
"""A number with so many digits (a sign counts as one) may exceed 64 bits; orjson would round it."""
QUOTE = ord('"')


class Packed:
    """A text with its mark, which travels unchanged."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _mark(kind: str, text: str) -> str:
    return f"{MARK}{kind}:{text}"


def _text(value: str) -> str:
    return _mark("text", b64encode(value.encode("utf-8", "surrogatepass")).decode())


def _marked(value: Any) -> Any:
    """Return a text with a mark if it begins with NUL, any other value unchanged."""
    return plain(value) if type(value) is str else value


def _is_numpy(value: Any) -> bool:
    """Return whether it is a numpy scalar."""
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()


def _odd(value: Any) -> Any:
    """Return the JSON substitute of a value that is not JSON; orjson calls this for each."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _mark("bytes", b64encode(value).decode())
    if isinstance(value, Packed):
        return value.text
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Decimal):
        return _mark("decimal", str(value))
    if isinstance(value, dt.datetime):
        if value != value:  # pandas.NaT, which is a datetime; numpy's arrives as None, too
            return None
        if not getattr(value, "nanosecond", 0):  # of a pandas.Timestamp
            return _mark("datetime", value.isoformat())
    elif isinstance(value, dt.date | dt.time):
        return _mark("date" if isinstance(value, dt.date) else "time", value.isoformat())
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Enum):
        return _marked(value.value)
    for kind in BASES:
        if isinstance(value, kind) and type(value) is not kind:  # type: ignore[arg-type]
            return _marked(kind(value))
    if _is_numpy(value):
        item = value.item()
        if type(item) is not int or value.dtype.kind not in "mM":
            return item
        if (micros := value.astype(f"{value.dtype.kind}8[us]")) == value and type(micros.item()) is not int:
            return micros.item()  # nanoseconds that are 0; others have no exact counterpart
    raise TypeError(f"a {type(value).__name__} cannot be sent over Storm's pipe: {value!r}"[:300])


def plain(value: Any) -> Any:
    r"""Return a value with every part that is not JSON replaced by its substitute.

    >>> plain([b"\xff", float("inf"), {1: "one"}])
    ['\x00bytes:/w==', '\x00float:inf', {'\x00dict': [[1, 'one']]}]

    Raises:
        TypeError: a part of it cannot travel.
    """
    kind = type(value)
    if kind is str:
        return value if not value.startswith(MARK) and _is_unicode(value) else _text(value)
    if kind is float:
        return value if isfinite(value) else _mark("float", repr(value))
    if value is None or kind is bool or kind is int:
        return value
    if kind is list or kind is tuple:
        return [plain(item) for item in value]
    if kind is dict:
        if all(isinstance(key, str) for key in value):
            return {plain(key): plain(item) for key, item in value.items()}
        return {DICT: [[plain(key), plain(item)] for key, item in value.items()]}
    odd = _odd(value)
    return odd if type(odd) is str and odd.startswith(MARK) else plain(odd)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_odd_float(value: Any) -> bool:
    """Return whether a value contains a NaN or an infinity, which orjson writes as null."""
    if isinstance(value, Enum):
        return _has_odd_float(value.value)
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_odd_float, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_odd_float, value))
    return _is_numpy(value) and _has_odd_float(value.item())


class Encoder:
    """Encodes messages as JSON. Not thread-safe.

    The fast path is one call of orjson. In the few cases in which its result would not be exact, it is discarded and
    :func:`slow` encodes the message.
    """

    def __init__(self) -> None:
        self._marks = 0
        self._options = 0
        if orjson is not None:
            self._options = (
                orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS
            )

    def _default(self, value: Any) -> Any:
        odd = _odd(value)
        self._marks += type(odd) is str and odd.startswith(MARK)
        return odd

    def encode(self, message: Any) -> bytes:
        r"""Return one line of JSON.

        >>> Encoder().encode({"tuple": ["a", b"\x00", 2**64]})
        b'{"tuple":["a","\\u0000bytes:AA==",18446744073709551616]}'

        Raises:
            TypeError: a value cannot travel.
        """
        if orjson is None:
            return slow(message)
        self._marks = 0
        try:
            made: bytes = orjson.dumps(message, self._default, self._options)
        except TypeError:
            return slow(message)
        if (b"null" in made and _has_odd_float(message)) or (
            QUOTED_MARK in made and made.count(QUOTED_MARK) != self._marks
        ):
            return slow(message)
        return made


def slow(message: Any) -> bytes:
    """Return one line of JSON, without orjson; equal to its result in value."""
    return json.dumps(plain(message), allow_nan=False, separators=(",", ":")).encode()


def parse(data: bytes) -> Any:
    r"""Return the content of a message from any writer, with the marks still in place.

    >>> parse(rb'[18446744073709551616, NaN, "\u0000bytes:/w=="]')
    [18446744073709551616, nan, '\x00bytes:/w==']

    Raises:
        ValueError: it is not JSON or not UTF-8.
    """
    if orjson is None or _has_long_number(data):
        return json.loads(data)
    try:
        return orjson.loads(data)
    except ValueError:  # Python's parser accepts NaN and lone surrogates
        return json.loads(data)


def _has_long_number(data: bytes) -> bool:
    """Return whether the data may contain a number beyond 64 bits."""
    digits = data.translate(DIGITS)
    at = digits.find(LONG_NUMBER)
    while at >= 0:
        # Digits after a quotation mark are a text. Nearly half of Storm's ids have 19 digits and a sign.
        if data[at - 1] != QUOTE:
            return True
        at = digits.find(LONG_NUMBER, at + len(LONG_NUMBER))
    return False


def restore(value: Any) -> Any:
    r"""Return a value with every marked text converted back.

    >>> restore([1, "a", "\x00bytes:/w=="])
    [1, 'a', b'\xff']
    """
    kind = type(value)
    if kind is str:
        return _unmark(value) if value.startswith(MARK) else value
    if kind is list:
        return [restore(item) for item in value]
    if kind is dict:
        if len(value) == 1 and type(pairs := value.get(DICT)) is list:
            return {_hashable(restore(key)): restore(item) for key, item in pairs}
        return {restore(key): restore(item) for key, item in value.items()}
    return value


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if type(key) is list else key


def _unmark(text: str) -> Any:
    """Return the value of a marked text; the text itself if it is not our encoding."""
    kind, _, rest = text[1:].partition(":")
    try:
        return _READERS[kind](rest)
    except (KeyError, ValueError, ArithmeticError):
        return text


_READERS: Mapping[str, Callable[[str], Any]] = {
    "bytes": lambda text: b64decode(text, validate=True),
    "text": lambda text: b64decode(text, validate=True).decode("utf-8", "surrogatepass"),
    "float": float,
    "decimal": Decimal,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
}
