"""Records as lines of JSON and back: equal, for any bytes."""

from __future__ import annotations

import json
from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.cli.kafka_consume import FORMATS
from downspout.producing.lines import json_text, line_of, record_of, visible

made = namedtuple("made", "topic partition offset timestamp key value headers")
R: Any = made

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.none() | st.binary(max_size=40) | texts.map(str.encode) | st.just(b"")
formats = st.sampled_from(FORMATS)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(values, values, st.lists(st.tuples(texts, values), max_size=3), st.integers(-1, 1 << 40), formats, formats)
def test_what_is_printed_is_read_again(
    key: Any, value: Any, headers: Any, time: int, key_format: str, value_format: str
) -> None:
    """In each format the line holds the same bytes, nulls, headers, time and partition."""
    line = line_of(R("t", 3, 9, time, key, value, headers), key_format, value_format)
    assert line.isprintable()
    found = record_of(line.encode())
    same = [key, value]
    if key_format == "json":
        same[0] = _one_line(key)
    if value_format == "json":
        same[1] = _one_line(value)
    assert [found.key, found.value] == same
    assert list(found.headers) == headers
    assert found.timestamp_ms == (time if time >= 0 else None)
    assert (found.partition, found.topic) == (3, None)


def _one_line(data: bytes | None) -> bytes | None:
    """Return JSON as the format json shows it: without white space around it, and none of it a line's end."""
    shown = None if data is None else json_text(data)
    return data if shown is None else shown.encode()


@given(anything, st.sampled_from([None, 2]), st.booleans())
def test_json_stays_the_same_json(value: Any, indent: int | None, ascii_only: bool) -> None:
    """With the format json a document is part of the line, and comes back as the same document, digit by digit."""
    data = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    line = line_of(R("t", 0, 0, -1, None, data, []), value_format="json")
    assert line.isprintable()
    if not isinstance(value, str) and value is not None:
        assert json.loads(line)["value"] == value
        assert json.loads(line, parse_float=str)["value"] == json.loads(data, parse_float=str)
    back = record_of(line.encode()).value
    assert back is not None
    assert json.loads(back, parse_float=str) == json.loads(data, parse_float=str)


@pytest.mark.parametrize("number", ["1.10", "12345678901234567890.123", "1e400", "123456789012345678901234567890"])
def test_numbers_keep_their_digits(number: str) -> None:
    """Python's own floats would lose some."""
    assert record_of(b'{ "value" : {"a": %s} , "key":%s}' % (number.encode(), number.encode()))[:2] == (
        number.encode(),
        b'{"a": %s}' % number.encode(),
    )
    line = line_of(R("t", 0, 0, -1, None, number.encode(), []), value_format="json")
    assert f'"value":{number},' in line


@given(st.text(max_size=30))
def test_nothing_invisible_is_printed(text: str) -> None:
    """Escapes that a terminal would obey are escaped, and the JSON says the same."""
    shown = visible(json.dumps(text, ensure_ascii=False))
    assert shown.isprintable()
    assert json.loads(shown) == text
