"""CSV: the format of a line, and that lines parsed in columns equal lines parsed one by one."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from downspout.errors import ConfigError
from downspout.parse import parser as chunk_parser
from downspout.parse.csv import CsvParser, split_line
from downspout.sink import Columns
from tests.parse.test_json import same
from tests.sampling import examples

TYPES = (
    "string", "bool", "int8", "int16", "int32", "int64", "float32", "float64", "decimal(9,2)", "date", "timestamp",
    "timestamp_s", "timestamp_ms", "binary", "string!", "int32!", "float64!", "timestamp!", "bool!",
)  # fmt: skip
NAMES = ("a", "b", "c")

plain = st.sampled_from(
    ["", "1", "-1", "+1", "007", "-0", "2.0", "2.5", ".5", "1.", "1e3", "1e400", "1e9999", "1" * 20, "9" * 500, "128",
     "32768", "2147483648", "9223372036854775808", "253402300800", "-62135596800", "1234567890123456", "12345678",
     "123456789", "true", "false", "True", "1.555", "2013-01-31", "2013-01-31T05:17:00Z", "0000-01-01", "soon", " 1",
     "1 ", "nan", "inf", "0x1F", "é", "😀", "null", "-", "1_0", "٣"]
)  # fmt: skip
quoted = st.text(st.characters(codec="utf-8"), max_size=4).map(lambda text: '"' + text.replace('"', '""') + '"')
field = plain | plain | plain | quoted | st.text(st.characters(codec="utf-8"), max_size=3)


@st.composite
def lines(draw: st.DrawFn) -> bytes | None:
    """Draw a value: mostly a line of three fields, sometimes of others, sometimes nothing like it."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.none() | st.binary(max_size=8))
    if kind == 1:
        return draw(
            st.sampled_from(
                [
                    b"",
                    b"\n",
                    b"\r\n",
                    b"\r",
                    b",,",
                    b'"',
                    b'a"b,,',
                    b'"a"b,,',
                    b"\xff,,",
                    b",,\xff",
                    b"1,2,3\n\n",
                    b"1,2\r,3",
                ]
            )
        )
    fields = [draw(field) for _ in range(draw(st.integers(1, 5)) if kind == 2 else 3)]
    return (",".join(fields) + draw(st.sampled_from(["", "", "\n", "\r\n"]))).encode()


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(
    kinds=st.tuples(*(st.sampled_from(TYPES) for _ in NAMES)),
    values=st.lists(lines(), max_size=12),
    few=st.sampled_from([1, 1, 4]),
    block=st.integers(1, 9),
    skipped=st.booleans(),
)
@example(kinds=("int8", "int64", "string"), values=[b"1,2,3", b"1,2\n,3", b"1,2,3\r\n"], few=1, block=9, skipped=False)
def test_a_chunk_is_its_lines(
    kinds: tuple[str, ...], values: list[bytes | None], few: int, block: int, skipped: bool
) -> None:
    """Whatever the values are, a chunk gives the rows, the rejected rows and the reasons that its lines give."""
    names = NAMES[:2] if skipped else NAMES
    columns = Columns.parse([f"{name}:{kind}" for name, kind in zip(names, kinds, strict=False)])
    patch = pytest.MonkeyPatch()
    try:
        patch.setattr(chunk_parser, "ROWS_MIN", few)
        patch.setattr(chunk_parser, "BLOCK_ROWS", block)
        same(CsvParser([*names, "-"] if skipped else names, columns), names, values)
    finally:
        patch.undo()


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0")), min_size=1, max_size=5))
def test_what_a_writer_writes_is_read(fields: list[str]) -> None:
    """A line that Python's csv module has written gives its fields again; an empty one is null."""
    out = io.StringIO()
    csv.writer(out).writerow(fields)
    assert split_line(out.getvalue()) == [text if text or len(fields) == 1 else None for text in fields]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("", [None]),
        ('""', [""]),
        (",", [None, None]),
        ('"a,b",c', ["a,b", "c"]),
        ('"a\nb"\r\n', ["a\nb"]),
        ('"a""b"', ['a"b']),
        ('x,"",', ["x", "", None]),
    ],
)
def test_lines(line: str, fields: list[str | None]) -> None:
    """RFC 4180: quotes, quotes in quotes, delimiters and line ends in quotes, empty fields."""
    assert split_line(line) == fields


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('a"b', "a quote in field 1"),
        ('"a"b', "field 1 continues after"),
        ('"a', "not closed"),
        ("a\nb", "a line end in field 1|a line end"),
        ('"a",b\r', "a line end in field 2"),
    ],
)
def test_what_is_no_line(line: str, said: str) -> None:
    """A quote or a line end where none may stand is an error that says which field."""
    with pytest.raises(ValueError, match=said):
        split_line(line)


def test_a_list_is_no_field() -> None:
    """A column that is a list is refused: CSV has none."""
    for kind in ("list<string>", "map<string,int8>", "struct<a:int8>"):
        with pytest.raises(ConfigError, match=rf"a:{kind}: a field of CSV holds one value"):
            CsvParser(["a"], Columns.parse([f"a:{kind}"]))


def test_another_delimiter() -> None:
    """With a semicolon commas are letters like any other, in many lines as in one."""
    parser = CsvParser(["a", "b"], Columns.parse(["a:string", "b:int8"]), ";")
    values: list[Any] = [b"x,y;%d" % number for number in range(100)]
    rows, rejected, _ = same(parser, ["a", "b"], values)
    assert rows[7] == (7, {"a": "x,y", "b": 7})
    assert rejected == []
