"""Parsers of untrusted data: no crash, no surprise, bounded memory and time."""

from __future__ import annotations

import copy
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from downspout.engine import Graph, resolve
from downspout.errors import ConfigError
from downspout.settings import SETTINGS
from tests.sampling import examples
from tests.security.untrusted import PARSERS, Parser, document_of, survives

PARSER = pytest.mark.parametrize("name", PARSERS)
SEALED = pytest.mark.parametrize("name", [name for name, parser in PARSERS.items() if parser.resealed])
FUZZ = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NASTY_BYTES = [
    b"", b"\0", b"\xff\xfe", b"null", b"NaN", b"-Infinity", b"1e999", b"-1", b"0.5", b"true", b'""', b"[]", b"{}",
    b"{", b'"',
    b"9" * 400, b"9" * 5000, b"-" + b"9" * 5000, b"1_000", b"+1", b" 1", "٣".encode(), "²".encode(), b'"\\ud800"',
    b"\xed\xa0\x80",
    b"\\u0000", b"zzzzzzzzzzzz.zzzzzzzzzzzz", b"1.1," * 50,
    b"[" * 3000, b'{"a":' * 3000, b"..", b"/", b",", b".", b"-", b"=", b"\n",
]  # fmt: skip
NASTY_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 10**4299, 0.0, 1.0, 2.5, float("inf"),
    float("nan"), "", "x",
    "\ud800", "\0", "..", "/", "../x", "/etc/passwd", "a/../../b", "_downspout/log/00000000000000000000.json", ".",
    "x" * 5000, [], {},
    [[]], [None], [1], [1, 2], [-1, 1], [0, 0], [2**62, 2**62], [1] * 999, [["a", 1, 1]], {"a": 1},
    {"a": {"0": 1}}, {"\ud800": ""},
    "split.0/" * 300, [["..", 1, 1]], [["\ud800.parquet", 1, 1]], [["a.parquet", 10**4299, 1]],
]  # fmt: skip


@st.composite
def torn(draw: st.DrawFn, sample: bytes) -> bytes:
    """A valid input that was cut, flipped, spliced or repeated."""
    content = bytearray(sample)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        until = draw(st.integers(at, min(len(content), at + 40)))
        how = draw(st.sampled_from(["cut", "flip", "insert", "double", "truncate"]))
        if how == "cut":
            del content[at:until]
        elif how == "flip" and content:
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "insert":
            content[at:until] = draw(st.sampled_from(NASTY_BYTES) | st.binary(max_size=20))
        elif how == "double":
            content[at:at] = content[at:until] * draw(st.integers(1, 30))
        elif how == "truncate":
            del content[at:]
    return bytes(content)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where a document has values, each as the keys that lead there."""
    yield path
    found = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in found:
        yield from places(value, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a document with another value in one place."""
    if not path:
        return value
    made = copy.deepcopy(document)
    parent = made
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return made


@PARSER
def test_valid_input_is_taken(name: str) -> None:
    parser = PARSERS[name]
    if not name.startswith("offsets"):
        assert all(survives(parser, sample) for sample in parser.samples)
    assert any(survives(parser, sample) for sample in parser.samples)


@PARSER
@given(data=st.data())
@FUZZ
def test_torn_input_raises_nothing_but_the_documented_error(name: str, data: st.DataObject) -> None:
    """Whatever is cut, flipped, inserted or repeated in a valid input: it is taken, or refused in short words."""
    parser = PARSERS[name]
    survives(parser, data.draw(st.sampled_from(parser.samples).flatmap(torn)))


@PARSER
@given(content=st.binary(max_size=300) | st.lists(st.sampled_from(NASTY_BYTES), max_size=5).map(b"".join))
@FUZZ
def test_any_bytes_raise_nothing_but_the_documented_error(name: str, content: bytes) -> None:
    survives(PARSERS[name], content)


@SEALED
def test_every_value_in_every_place_is_taken_or_refused(name: str) -> None:
    """Each odd value, in each place of a document, under a checksum that fits: taken, or refused in short words."""
    parser = PARSERS[name]
    assert parser.resealed is not None
    for sample in parser.samples:
        document = document_of(sample)
        for path in places(document):
            for value in NASTY_VALUES:
                survives(parser, parser.resealed(replaced(document, path, value)))


@SEALED
@pytest.mark.parametrize("depth", [*range(880, 1000, 3), 5_000, 100_000])
def test_deep_nesting_is_refused(name: str, depth: int) -> None:
    """A document that nests deeper than the stack, or nearly so, is refused."""
    parser = PARSERS[name]
    opening = parser.samples[0].decode()[:-1]
    survives(parser, f'{opening},"x":{"[" * depth}{"]" * depth}}}'.encode())


NESTS = [b"[" * 200_000, b'{"t":' * 200_000, b'{"t":{"0":' + b"[" * 200_000]


@pytest.mark.parametrize("name", ["commit metadata", "offsets in Spark's options", "offsets in a checkpoint"])
@pytest.mark.parametrize("content", NESTS, ids=["lists", "objects", "inside"])
def test_nesting_is_refused_elsewhere_too(name: str, content: bytes) -> None:
    survives(PARSERS[name], content)


# --- bombs: input that asks for more than it is ---------------------------------------------------------------

SIZE = 100_000


def _entry_with(key: str, value: Any) -> bytes:
    parser = PARSERS["log entry"]
    assert parser.resealed is not None
    return parser.resealed({**document_of(parser.samples[0]), key: value})


def _stream(ranges: list[int]) -> list[dict[str, Any]]:
    return [{"topic": "t", "topic_id": "", "partition": 0, "path": "", "ranges": ranges}]


BOMBS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "digits as JSON": ("commit metadata", lambda n: b'{"topologyId":"t","taskId":' + b"9" * n + b',"threadName":"x"}'),
    "rows by the billion": ("log entry", lambda n: _entry_with("coverage", _stream([0, 2**62]))),
    "many ranges of rows": ("log entry", lambda n: _entry_with("coverage", _stream([1, 1] * (n // 4)))),
    "many files": ("log entry", lambda n: _entry_with("files", [["a", 1, 1]] * (n // 9))),
    "many headers": ("dead letter", lambda n: b"__downspout.replay.topic=x\n" * (n // 27)),
    "one long header": ("dead letter", lambda n: b"__downspout.errors.offset=" + b"9" * n),
    "many partitions": (
        "offsets in a checkpoint",
        lambda n: json.dumps({"t": {str(i): 1 for i in range(n // 10)}}).encode(),
    ),
    "a partition of many digits": ("offsets in a checkpoint", lambda n: b'{"t":{"' + b"9" * n + b'":1}}'),
    "an offset of many digits": ("offsets in a checkpoint", lambda n: b'{"t":{"0":' + b"9" * 4000 + b"}}"),
    "a skip of 10^18 records": ("offsets in Spark's options", lambda n: b'{"t":{"0":[[0,999999999999999999]]}}'),
    "many skips": (
        "offsets in Spark's options",
        lambda n: json.dumps({"t": {"0": [[2 * i, 2 * i + 1] for i in range(n // 12)]}}).encode(),
    ),
}  # fmt: skip
BYTES_PER_BYTE = 150
"""Python's objects for a number of one digit and a comma; a bomb would take millions."""


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_memory_follows_the_size_of_the_input(bomb: str) -> None:
    """The most memory that a parser holds is bounded by its input, not by the numbers in it."""
    name, make = BOMBS[bomb]
    content = make(SIZE)
    survives(PARSERS[name], content)  # what is cached for ever is there now
    tracemalloc.start()
    try:
        survives(PARSERS[name], content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BYTES_PER_BYTE * len(content) + 500_000


def calls(parser: Parser, content: bytes) -> int:
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        survives(parser, content)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_work_follows_the_size_of_the_input(bomb: str) -> None:
    """Twice the input is at most about twice the work, counted in calls."""
    name, make = BOMBS[bomb]
    small, large = (calls(PARSERS[name], make(size)) for size in (10_000, 20_000))
    assert large < 2.5 * small + 500


# --- settings -----------------------------------------------------------------------------------------------------

ODD = st.sampled_from([content.decode("utf-8", "surrogateescape") for content in NASTY_BYTES]) | st.text(max_size=30)


@given(st.lists(st.tuples(st.sampled_from([*SETTINGS, "kafka.client.fetch_min_bytes", "topology.x"]), ODD), max_size=4))
@FUZZ
def test_any_value_of_a_setting_is_taken_or_refused(given_values: list[tuple[str, str]]) -> None:
    """Whatever --set gives a setting, it fits, or is an error that names the setting."""
    pairs = [f"{key}={value}" for key, value in given_values]
    try:
        resolve(Graph("g", {}, {}), pairs, environ={})
    except ConfigError as error:
        _names_one(error, [key for key, _ in given_values])


def _names_one(error: ConfigError, keys: list[str]) -> None:
    assert any(key in error.message for key in keys)
