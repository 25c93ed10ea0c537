"""JSON parsed in columns: the outcome is that of each record by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.shapes import SHAPES, Shape
from bolts.parse import split_fields
from downspout.errors import ConfigError
from downspout.parse import Paths, parse_object
from downspout.parse import parser as chunk_parser
from downspout.parse.flat import FlatReader
from downspout.parse.json import ArrowReader, JsonParser, parse_objects
from downspout.sink import Columns
from tests.sampling import examples

TYPES = (
    "string", "bool", "int8", "int16", "int32", "int64", "float32", "float64", "decimal(9,2)", "date", "timestamp",
    "timestamp_s", "timestamp_ms", "timestamp_us", "list<int16>", "list<string>", "list<float64>", "binary",
    "decimal(38,9)", "list<decimal(5,1)>", "list<timestamp>", "map<string,int16>", "map<string,timestamp_ms>",
    "struct<a:int8,b:decimal(5,1),c:float64>", "struct<a:list<string>>",
    "string!", "int32!", "float64!", "timestamp!",
)  # fmt: skip

Outcome = tuple[list[tuple[int, dict[str, Any]]], list[tuple[int, str]], int]


def one_by_one(parser: JsonParser, names: Sequence[str], values: Sequence[Any]) -> Outcome:
    """Return what becomes of each value when it is parsed alone: rows, rejected rows, tombstones."""
    rows, rejected, filtered = [], [], 0
    for place, value in enumerate(values):
        if value is None:
            filtered += 1
            continue
        try:
            rows.append((place, dict(zip(names, parser.parse_one(value), strict=True))))
        except ValueError as error:
            rejected.append((place, str(error)))
    return rows, rejected, filtered


def many_at_once(parser: JsonParser, names: Sequence[str], values: Sequence[Any]) -> Outcome:
    """Return the same of values that are parsed many by one call, as far as that goes, and alone where it stops."""
    rows, rejected, filtered, place = list[Any](), list[Any](), 0, 0
    while place < len(values):
        found = parser.parse_many(values[place : place + 150])
        rows += [(place + at, dict(zip(names, each, strict=True))) for at, each in enumerate(found)]
        place += len(found)
        if place < len(values) and len(found) < 150:
            more = one_by_one(parser, names, values[place : place + 1])
            assert not more[0]
            rejected += [(place, reason) for _, reason in more[1]]
            filtered += more[2]
            place += 1
    return rows, rejected, filtered


def in_columns(parser: JsonParser, values: Any) -> Outcome:
    found = parser.parse(values)
    found.batch.validate(full=True)
    rows = list(zip(found.rows.tolist(), found.batch.to_pylist(maps_as_pydicts="strict"), strict=True))
    return rows, [(reject.row, reject.reason) for reject in found.rejected], found.filtered


def same(parser: Any, names: Sequence[str], values: Sequence[Any], kind: pa.DataType | None = None) -> Outcome:
    """Assert that both ways agree, to the bit, and return the outcome."""
    together = in_columns(parser, pa.array(values, kind or pa.binary()))
    alone = one_by_one(parser, names, values)
    assert repr(together) == repr(alone)  # repr tells 0.0 from -0.0 and 1 from True
    assert repr(many_at_once(parser, names, values)) == repr(alone)
    return together


def parser_of(types: dict[str, str]) -> JsonParser:
    return JsonParser(Paths(list(types)), Columns.parse([f"{name}:{kind}" for name, kind in types.items()]))


# --- random documents ---

texts = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ["", ",", '"', "\\", "\n", "\x00", "é", "😀", "null", "2013-01-31", "2013-01-31T05:17:00Z", "0001-01-01T00:00:00Z",
     "2013-01-31T05:17:00+01:00", "0000-01-01", "9999-12-31T23:59:59.999999Z", "2013-1-1", "a,b", '{"', "}", "1"]
)  # fmt: skip
edges = [
    0,
    -1,
    1,
    127,
    128,
    -128,
    -129,
    2**15,
    2**16,
    2**24,
    2**24 + 1,
    2**31,
    -(2**31),
    2**53,
    2**53 + 1,
    2**63,
    2**64,
]
edges += [10**8, 10**8 - 1, 10**16, 10**16 - 1, -(10**15), 253_402_300_799, 253_402_300_800, 253_402_300_800_000]
numbers = st.integers(-200, 200) | st.sampled_from(edges) | st.integers(-(2**65), 2**65)
floats = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([2.0, -0.0, 1e300, 3.5e38, 1e16, 0.1])
decimals = st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,12})?", fullmatch=True)
scalars = st.none() | st.booleans() | numbers | floats | texts | decimals
anything = scalars | st.lists(scalars, max_size=3) | st.dictionaries(texts, scalars, max_size=2)
raw = st.sampled_from(
    [b"01", b"-0", b"1.", b".5", b"+1", b"1e5", b"1E+2", b"-", b"NaN", b"Infinity", b"1e999", b"0x1F", b"tru", b"nul",
     b'"\\u0041"', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\xff"', b'"\xc3\xa9"', b'"\x01"', b'"\t"', b"", b" 1", b"1 ",
     b"[1", b"2]",
     b"49.54", b"12345678901234567.89", b"0.1000000000000000000001", b'{"a": 12345678901234567.5}',
     b'"a', b'b"', b"[]", b"[[]]", b"{}", b"18446744073709551616", b"1" * 400, b"0.1e1", b"1_0"]
)  # fmt: skip
NAMES = ("a", "b", "c")


@st.composite
def documents(draw: st.DrawFn) -> bytes | None:
    """Draw a value of a record: mostly an object of a few shapes, sometimes odd, sometimes nothing like it."""
    kind = draw(st.integers(0, 11))
    if kind == 0:
        return draw(st.none() | st.binary(max_size=12))
    if kind == 1:
        odd = [b"", b" ", b"{}", b"{}{}", b"{} {}", b"\xef\xbb\xbf{}", b"null", b"[]", b"{}\0}", b'{"a":}', b'{"a":"}',
               b'{","b":1}', b'{"a":1,"a":2}', b'{"a":1,}', b'{"a" :1}', b'{"\\u0061":1}', b"{\n}",
               b'{"a":[' * 1030]  # fmt: skip
        return draw(st.sampled_from(odd))
    order = draw(st.permutations(NAMES)) if kind == 2 else NAMES
    names = [name for name in order if kind > 4 or draw(st.booleans())] + (["z"] if kind == 5 else [])
    tokens = [
        draw(raw)
        if kind == 6 and draw(st.booleans())
        else json.dumps(draw(anything), ensure_ascii=kind % 2 == 0).encode()
        for _ in names
    ]
    colon, comma = (b": ", b", ") if kind == 7 else (b":", b",")
    text = b"{" + comma.join(b'"%s"%s%s' % (n.encode(), colon, t) for n, t in zip(names, tokens, strict=True)) + b"}"
    return b" %s \n" % text if kind == 8 else text


shapes = st.tuples(*(st.sampled_from(TYPES) for _ in NAMES))


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(kinds=shapes, values=st.lists(documents(), max_size=12), few=st.sampled_from([1, 1, 4]), block=st.integers(1, 9))
@example(kinds=("string", "int8", "string"), values=[b'{"a":"}', b'{","b":1}', b"{}{}", b'{"b":1}'], few=1, block=9)
@example(kinds=("int64", "int8", "string"), values=[b"{}{}\0}", b'{"a":5}', b'{"a":6}'], few=1, block=9)
@example(kinds=("bool",) * 3, values=[b'{"a":true}', b'{"a":"x}', b'{"a":y"}', b'{"a":false}'], few=1, block=9)
@example(kinds=("float64", "float32", "bool"), values=[b'{"a":-0}', b'{"a":-0.0}', b'{"b":16777217}'], few=1, block=9)
def test_a_chunk_is_its_records(kinds: tuple[str, ...], values: list[bytes | None], few: int, block: int) -> None:
    """Whatever the values are, a chunk gives the rows, the rejected rows and the reasons that its records give."""
    patch = pytest.MonkeyPatch()
    try:
        patch.setattr(chunk_parser, "ROWS_MIN", few)
        patch.setattr(chunk_parser, "BLOCK_ROWS", block)
        parser = parser_of(dict(zip(NAMES, kinds, strict=True)))
        for _ in range(2):  # the second time it knows the shapes
            same(parser, NAMES, values)
    finally:
        patch.undo()


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    kinds=shapes,
    rows=st.lists(st.tuples(anything, anything, anything), min_size=1, max_size=8),
    odd=st.lists(st.tuples(st.integers(0, 119), documents()), max_size=6),
)
def test_many_alike_and_some_odd(
    kinds: tuple[str, ...], rows: list[tuple[Any, ...]], odd: list[tuple[int, bytes | None]]
) -> None:
    """Of a hundred records of one shape with odd ones among them, each has the outcome that it has alone."""
    values: list[bytes | None] = [json.dumps(dict(zip(NAMES, row, strict=True))).encode() for row in rows] * 15
    for place, value in odd:
        values[place % len(values)] = value
    same(parser_of(dict(zip(NAMES, kinds, strict=True))), NAMES, values)


# --- one trap each ---

FLIGHT = {"carrier": "string", "delay": "int16", "share": "float64"}
TRAPS: dict[str, bytes | None] = {
    "an empty value": b"",
    "blanks alone": b" \t\r\n",
    "a tombstone": None,
    "two documents": b"{}{}",
    "two documents with a blank": b'{"delay": 1} {"delay": 2}',
    "a document cut short": b'{"carrier": "}',
    "the end of another": b'{","delay": 1}',
    "two documents and NUL, which ends Arrow's input": b'{}{}\0}',
    "NUL in a text": b'{"carrier": "\0"}',
    "a byte order mark": b'\xef\xbb\xbf{"delay": 1}',
    "no UTF-8 in a field": b'{"carrier": "\xff"}',
    "no UTF-8 in what nobody asked for": b'{"note": "\xff", "delay": 1}',
    "a lone surrogate": b'{"carrier": "\\ud800"}',
    "a lone surrogate that nobody asked for": b'{"note": "\\udc00", "delay": 1}',
    "line feeds within": b'{\n"delay":\n1\n}',
    "blanks around": b' {"delay": 1}\r\n',
    "NaN": b'{"share": NaN}',
    "NaN that nobody asked for": b'{"note": NaN, "delay": 1}',
    "infinity": b'{"note": -Infinity, "delay": 1}',
    "a key twice": b'{"delay": 1, "delay": 2}',
    "a key twice, once escaped": b'{"delay": 1, "d\\u0065lay": 2}',
    "no fraction in a float": b'{"delay": 2.0}',
    "a fraction": b'{"delay": 2.5}',
    "an exponent": b'{"delay": 1e2}',
    "out of range": b'{"delay": 32768}',
    "beyond 64 bits": b'{"delay": 18446744073709551616}',
    "a whole number that no float is": b'{"share": 9007199254740993}',
    "minus zero, whole": b'{"share": -0}',
    "minus zero": b'{"share": -0.0}',
    "too large for a float": b'{"note": 1e999}',
    "a zero in front": b'{"delay": 01}',
    "a plus in front": b'{"delay": +1}',
    "a text for a number": b'{"delay": "1"}',
    "a number for a text": b'{"carrier": 1}',
    "true for a number": b'{"share": true}',
    "an object for a text": b'{"carrier": {"delay": 1}}',
    "a comma behind the last": b'{"delay": 1,}',
    "a comment": b'{"delay": 1} // one',
    "an array": b'[{"delay": 1}]',
    "null": b"null",
    "nested too deeply": b'{"note": ' + b"[" * 1_030 + b"]" * 1_030 + b"}",
    "nested deeply": b'{"note": ' + b"[" * 900 + b"]" * 900 + b', "delay": 1}',
    "a key that is no UTF-8": b'{"\xff": 1, "delay": 1}',
    "a control character": b'{"carrier": "\x01"}',
    "an escaped control character": b'{"carrier": "\\u0001"}',
    "the separators in a text": b'{"carrier": "\\",\\"delay\\":1", "delay": 2}',
}  # fmt: skip


@pytest.mark.parametrize("way", ["alike", "arrow", "mixed"])
@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_shifts_nothing(trap: str, way: str) -> None:
    """An odd value among many good ones has the outcome that it has alone, and so has each of the others."""
    good = [
        {
            "alike": b'{"carrier": "UA", "delay": %d, "share": 0.5}',
            "arrow": b'{"delay": %d, "note": [1], "carrier": "AA"}',
        }
        for _ in range(60)
    ]
    values: list[bytes | None] = [
        (texts["alike"] if way == "alike" or (way == "mixed" and number % 2) else texts["arrow"]) % number
        for number, texts in enumerate(good)
    ]
    values[0] = values[31] = TRAPS[trap]
    rows, _, _ = same(parser_of(FLIGHT), list(FLIGHT), values)
    assert [(place, row["delay"]) for place, row in rows if place not in (0, 31)] == [
        (place, place) for place in range(60) if place not in (0, 31)
    ]


def test_each_way_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of scalars go the first way, other plain ones Arrow's, and only the odd ones the exact way."""
    ways = {"flat": 0, "arrow": 0, "exact": 0}
    by_piece, by_arrow, exactly = FlatReader.parse, ArrowReader.parse, JsonParser._exactly

    def flat(self: FlatReader, *given: Any) -> Any:
        found = by_piece(self, *given)
        ways["flat"] += sum(len(part[0]) for part in found)
        return found

    def arrow(self: ArrowReader, *given: Any) -> Any:
        found = by_arrow(self, *given)
        ways["arrow"] += sum(len(part[0]) for part in found)
        return found

    def exact(self: JsonParser, values: Any, rows: Any) -> Any:
        ways["exact"] += len(rows)
        return exactly(self, values, rows)

    monkeypatch.setattr(FlatReader, "parse", flat)
    monkeypatch.setattr(ArrowReader, "parse", arrow)
    monkeypatch.setattr(JsonParser, "_exactly", exact)
    alike = [b'{"carrier": "UA", "delay": %d, "share": 1.5}' % number for number in range(100)]
    alike += [b'{"share": 1.5, "more": %d}' % number for number in range(100)]
    others = [b'{"delay": %d, "note": [%d]}' % (number, number) for number in range(100)]
    odd = [b'{"delay": 2.0, "note": []}', b"x", b'{"carrier": "\\n", "delay": 1, "share": 0}']
    parser = parser_of(FLIGHT)
    assert len(parser.parse(pa.array(alike + others + odd)).rows) == 302
    assert ways == {"flat": 200, "arrow": 101, "exact": 2}


@pytest.mark.parametrize("count", [300, 5_000])
def test_dense_culprits_cost_no_halving(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every third value is broken, Arrow's reader gives up after few tries and is left alone for a while."""
    reads = 0
    read = ArrowReader._read

    def counted(self: ArrowReader, *given: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(self, *given)

    monkeypatch.setattr(ArrowReader, "_read", counted)
    values: list[bytes | None] = [b'{"delay": %d, "note": []}' % n if n % 3 else b'{"delay": ]}' for n in range(count)]
    rows, rejected, _ = same(parser_of(FLIGHT), list(FLIGHT), values)
    assert (len(rows), len(rejected)) == (count - len(range(0, count, 3)), len(range(0, count, 3)))
    assert reads < 60


def test_arrays_that_are_slices_and_views() -> None:
    """A slice, texts, and large binary values give what plain ones give."""
    values = [b'{"carrier": "%d", "delay": %d, "share": null}' % (number, number) for number in range(200)]
    parser = parser_of(FLIGHT)
    expected = in_columns(parser, pa.array(values))[0]
    for kind in (pa.string(), pa.large_binary(), pa.large_string()):
        assert in_columns(parser, pa.array(values, pa.binary()).cast(kind))[0] == expected
    sliced = in_columns(parser, pa.array([b"x", *values, b"y"]).slice(1, 200))
    assert (sliced[0], sliced[1]) == (expected, [])
    rejected = in_columns(parser, pa.array([1, 2]))[1]
    assert [(row, said.startswith("value is not as expected: Input must be bytes")) for row, said in rejected] == [
        (0, True), (1, True),
    ]  # fmt: skip


def test_one_key_for_two_fields() -> None:
    columns = Columns.parse(["a:string", "b:string", "c:int8"])
    parser = JsonParser(Paths(["k", "k", "n"]), columns)
    rows, _, _ = same(parser, ["a", "b", "c"], [b'{"k": "%d", "n": 1}' % number for number in range(100)])
    assert rows[7] == (7, {"a": "7", "b": "7", "c": 1})


@pytest.mark.parametrize(
    ("kind", "token"),
    [("timestamp", b'"0000-12-31T23:59:59Z"'), ("timestamp_s", b"253402300800"), ("timestamp_ms", b"-62135596800001")],
)
@pytest.mark.parametrize("rest", [b"", b', "note": []'])
def test_a_moment_that_no_datetime_holds_is_rejected(kind: str, token: bytes, rest: bytes) -> None:
    """A moment before the year 1 or after 9999 is rejected alone as among many, by its column and value."""
    good = b'"2013-01-31T05:17:00Z"' if kind == "timestamp" else b"1357041600"
    values: list[bytes | None] = [b'{"at": %s%s}' % (good if n % 9 else token, rest) for n in range(90)]
    rows, rejected, _ = same(parser_of({"at": kind}), ["at"], values)
    assert [row for row, _ in rejected] == list(range(0, 90, 9))
    assert len(rows) == 80
    assert all("does not fit timestamp" in said and "years 1 to 9999" in said for _, said in rejected)


def up_to_the_first_odd(values: Sequence[Any], keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the fields of each value, one at a time, up to the first that has none."""
    found: list[tuple[Any, ...]] = []
    for value in values:
        try:
            found.append(tuple(parse_object(value, Paths(keys))))
        except (ValueError, TypeError):
            break
    return found


@given(
    values=st.lists(st.fixed_dictionaries({"a": st.integers()}, optional={"b": texts}).map(json.dumps), max_size=6),
    odd=st.lists(st.tuples(st.integers(0, 6), documents() | st.just("{") | st.just('"ab"')), max_size=1),
    keys=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3),
)
@example(values=['{"a": 1, "b": ""}'], odd=[(1, b'"ab"')], keys=["a", "b"])
def test_records_that_are_read_together_have_the_fields_they_have_alone(
    values: list[Any], odd: list[tuple[int, Any]], keys: list[str]
) -> None:
    """Fields that some lack are None, and what is no object ends what is read together, wherever it stands."""
    for place, value in odd:
        values.insert(place, value)
    assert parse_objects(values, Paths(keys)) == up_to_the_first_odd(values, keys)


DECIMALS = [
    (b"49.54", "49.54"), (b'"12.34"', "12.34"), (b"7", "7"), (b"-0.10", "-0.10"), (b"1e3", "1000"),
    (b"12345678901234567.89", "12345678901234567.89"), (b"123456789012345678901234567", "123456789012345678901234567"),
    (b'"0.000000001"', "0.000000001"), (b"0.30000000", "0.3"),
]  # fmt: skip


@pytest.mark.parametrize("rest", [b"", b', "z": {"deep": 1}'])
def test_a_decimal_is_taken_to_the_last_digit(rest: bytes) -> None:
    """A decimal column takes numbers and their texts exactly, by each way, and refuses digits beyond its scale."""
    good = [b'{"n": %s%s}' % (token, rest) for token, _ in DECIMALS]
    bad = [
        b'{"n": %s%s}' % (token, rest) for token in (b"0.1000000000000000000001", b'"1,5"', b"true", b"[1]", b"1e40")
    ]
    rows, rejected, _ = same(parser_of({"n": "decimal(38,9)"}), ["n"], [*good, *bad] * 20)
    assert [row["n"] for _, row in rows] == [Decimal(text) for _, text in DECIMALS] * 20
    assert len(rejected) == len(bad) * 20


def test_values_inside_of_objects_and_lists() -> None:
    """A path finds the value inside; what is missing on the way is null, and what is of another kind is rejected."""
    paths = Paths(["user.id", "items[0].sku", "items[-1]", '"a.b"'])
    parser = JsonParser(
        paths,
        Columns.parse(["id:int64", "first:string", "last:struct<sku:string,paid:decimal(9,2)>", "dotted:bool"]),
    )
    names = ["id", "first", "last", "dotted"]
    values: list[Any] = [
        b'{"user": {"id": 7}, "items": [{"sku": "x", "paid": 1.5}, {"sku": "y", "paid": "2.25"}], "a.b": true}',
        b"{}", b'{"user": null, "items": []}', b'{"user": {}, "items": [null]}',
        b'{"user": 5}', b'{"user": [1]}', b'{"items": {"0": 1}}', b'{"items": [3]}', b"[]",
    ] * 10  # fmt: skip
    rows, rejected, _ = same(parser, names, values)
    assert rows[0][1] == {"id": 7, "first": "x", "last": {"sku": "y", "paid": Decimal("2.25")}, "dotted": True}
    assert [tuple(row.values()) for _, row in rows[1:4]] == [(None,) * 4] * 3
    assert [reason for _, reason in rejected[:4]] == [
        "value is not as expected: user is a number, an object is needed",
        "value is not as expected: user is an array, an object is needed",
        "value is not as expected: items is an object, an array is needed",
        "value is not as expected: items[0] is a number, an object is needed",
    ]


@pytest.mark.parametrize("path", ["", ".a", "a.", "a..b", "a[", "a[x]", "[0]", 'a"b', "a[0]b", '"a', "a[1.5]"])
def test_what_is_not_a_path_is_refused(path: str) -> None:
    """A path that cannot be read is an error when the topology is built, with examples of paths."""
    with pytest.raises(ConfigError, match=r"does not say where.*items\[0\]\.sku"):
        Paths([path])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.key)
def test_a_shape_gives_the_rows_that_were_written(shape: Shape) -> None:
    """For each shape of JSON a chunk has the rows that its producer wrote, also with bad records among them."""
    names, paths = split_fields(shape.fields)
    parser = JsonParser(Paths(paths), Columns.parse([f"{name}:{kind}" for name, kind in shape.types.items()]))
    made = shape.made(300)
    rows, rejected, _ = same(parser, names, [value for value, _ in made])
    assert not rejected
    assert [row for _, row in rows] == [{name: row[name] for name in names} for _, row in made]
    spoiled = [value[: len(value) // 2] if place % 7 == 0 else value for place, (value, _) in enumerate(made)]
    rows, rejected, _ = same(parser, names, spoiled)
    assert [place for place, _ in rejected] == list(range(0, 300, 7))


LONG_KEYS = ["temperature_of_the_cabin", "temperature_of_the_cargo", "t", "temperatu", "temperature"]


@pytest.mark.parametrize("colon", [b":", b": ", b"          :     "])
def test_keys_that_begin_alike_are_told_apart(colon: bytes) -> None:
    """Keys of any length keep their values, whichever of their bytes differ; one that is almost another is another."""
    kinds = dict.fromkeys(LONG_KEYS, "int32")
    values: list[bytes | None] = []
    for number in range(200):
        keys = [*LONG_KEYS[number % 3 :], *LONG_KEYS[: number % 3]][: 2 + number % 4]
        keys += ["temperature_Of_the_cabin"] * (number % 10 == 9)
        pairs = [b'"%s"%s%d' % (key.encode(), colon, number + at) for at, key in enumerate(keys)]
        values.append(b"{" + b",".join(pairs) + b"}")
    values[7] = b'{"t"%s7,"t"%s8}' % (colon, colon)
    values[8] = b'{"t"%s7,"temperature"}' % colon
    values[9] = b'{"t"%s7,"\xff\xff\xff\xff\xff\xff\xff\xff\xff":1}' % colon
    values[11] = b'{"t"%s7,\x00"t"%s8}' % (b" " * 7 + b":", colon)
    rows, rejected, _ = same(parser_of(kinds), LONG_KEYS, values)
    assert [place for place, _ in rejected] == [8, 9, 11]
    assert rows[7][1]["t"] == 8


def test_a_way_that_is_of_no_use_is_seldom_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no record is an object of scalars, the first way is tried in fewer and fewer blocks, and comes back."""
    tried = 0
    parse = FlatReader.parse

    def counted(self: FlatReader, *given: Any) -> Any:
        nonlocal tried
        tried += 1
        return parse(self, *given)

    monkeypatch.setattr(FlatReader, "parse", counted)
    monkeypatch.setattr(chunk_parser, "BLOCK_ROWS", 60)
    parser = parser_of(FLIGHT)
    parser.parse(pa.array([b'{"delay": 1, "note": [%d]}' % number for number in range(60 * 64)]))
    assert tried == 6
    flat = pa.array([b'{"delay": %d, "carrier": "UA"}' % number for number in range(60 * 128)])
    assert parser.parse(flat).batch.column("delay").to_pylist() == list(range(60 * 128))
    assert tried > 64


@pytest.mark.parametrize("odd", [
    [b'{"a": "x, "b": 1}', b'{"a": 1,2, "b": 1}', b'{"a": y", "b": 1}'],
    [b'{"a": ", "b": 1}', b'{"a": 5, "b": 1}', b'{"a": ", "b": 1}', b'{"a": 1,2, "b": 1}', b'{"a": 1,2, "b": 1}'],
    [b'{"a": [1, "b": 1}', b'{"a": 2], "b": 1}', b'{"a": 1,2, "b": 1}'],
    [b'{"a": "x\\", "b": 1}', b'{"a": "y", "b": 1}', b'{"a": "x","y", "b": 1}'],
    [b'{"a": {"x":1, "b": 1}', b'{"a": 1}, "b": 1}', b'{"a": 1,2, "b": 1}'],
])  # fmt: skip
@pytest.mark.parametrize("kind", ["float64", "string", "decimal(9,2)", "bool", "int32"])
def test_values_that_are_cut_wrongly_shift_no_others(odd: list[bytes], kind: str) -> None:
    """Where one value would be two and two others one, each record has the outcome that it has alone."""
    values: list[bytes | None] = [b'{"a": %d.5, "b": 1}' % number for number in range(60)]
    for fields in ({"a": kind, "b": "int8"}, {"b": "int8"}):
        parser = parser_of(fields)
        same(parser, list(fields), [*values[:30], *odd, *values[30:]])


def test_a_key_that_is_a_paths_text_is_found_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested values are read many at once, and a record in which a path's whole text is a key is still rejected."""
    read = 0
    parse = ArrowReader.parse

    def counted(self: ArrowReader, *given: Any) -> Any:
        nonlocal read
        found = parse(self, *given)
        read += sum(len(part[0]) for part in found)
        return found

    monkeypatch.setattr(ArrowReader, "parse", counted)
    columns = Columns.parse(["id:int32", "sku:string", "last:int8"])
    parser = JsonParser(Paths(["user.id", "items[1].sku", "items[-1].n"]), columns)
    values: list[bytes | None] = [
        b'{"user": {"id": %d, "rate": 1.5}, "items": [{"n": 1}, {"sku": "x", "n": %d}]}' % (number, number % 3)
        for number in range(100)
    ]
    values[10] = b'{"user.id": 5}'
    values[20] = b'{"user.id": 5, "user": {"id": 6}}'
    values[30] = b'{"us\\u0065r.id": 5}'
    values[40] = b'{"user": {"id": 7}, "note": "user.id\\u00e9", "items": []}'
    values[50] = b'{"items[1].sku": "x", "user": null}'
    _, rejected, _ = same(parser, ["id", "sku", "last"], values)
    assert [place for place, _ in rejected] == [10, 30, 50]
    assert read == 100 - 4


def test_keys_that_were_made_to_collide_stop_nobody() -> None:
    """The reader of flat objects forgets keys that it cannot tell apart; the records are read in another way."""
    keys = ("T%Qkww0I177zl.f", "-w3KEW(GddG-@e9", "T%Qkww0Izzz")
    parser = JsonParser(Paths(["id"]), Columns.parse(["id:int64"]))
    hostile = [json.dumps({keys[number % 3]: 1, "id": number}).encode() for number in range(90)]
    for values in (hostile, [b'{"id":%d}' % number for number in range(90)], hostile):
        assert parser.parse(pa.array(values)).batch.column("id").to_pylist() == list(range(90))


def test_a_record_that_is_nested_too_deeply_is_rejected() -> None:
    """orjson reads 1,000 levels, and Python's reader, which tells a whole number from a float, does not."""
    parser = JsonParser(Paths(["a"]), Columns.parse(["a:int64"]))
    deep = b'{"a": 1.0, "x": ' + b"[" * 1_000 + b"]" * 1_000 + b"}"
    found = parser.parse(pa.array([b'{"a": 1}', deep, b'{"a": 2}']))
    assert (found.rows.tolist(), [reject.row for reject in found.rejected]) == ([0, 2], [1])
