"""CsvParseBolt: records and chunks, with types and without."""

from __future__ import annotations

from typing import Any

import pytest

from bolts.parse import CsvParseBolt
from downspout.errors import ConfigError
from downspout.ledger import Origin
from downspout.testing import run_bolt
from tests.parse.support import chunk, rows_of, run_chunks

TYPED = CsvParseBolt.spec(fields=["carrier", "-", "delay"], types={"carrier": "string", "delay": "int16"})
VALUES: list[bytes | str | None] = [b"UA,x,%d" % number for number in range(80)]
VALUES[5], VALUES[6], VALUES[7], VALUES[8] = b'"U,A",,', b"UA,x", b"UA,x,late", None


def test_a_chunk_gives_what_its_lines_give() -> None:
    """Rows, rejects and reasons of a chunk are those of its records."""
    in_chunks = run_chunks(TYPED, [chunk(VALUES)], rejects=True)
    tuples = [{"origin": Origin("orders", "id", 2, place), "value": value} for place, value in enumerate(VALUES)]
    records = run_bolt(TYPED, tuples)
    rows = rows_of(in_chunks.emitted("bolt"))
    assert rows == [
        {"offset": found.origin.offset, "carrier": found.carrier, "delay": found.delay}
        for found in records.emitted("bolt")
    ]
    assert rows[5] == {"offset": 5, "carrier": "U,A", "delay": None}
    (rejected,) = in_chunks.emitted("bolt", "rejects")
    said = [error.partition("bolt: ")[2].partition(".")[0] for error in rejected.column("error").to_pylist()]
    assert said == [
        "value is not as expected: 2 fields instead of 3", "delay = 'late' does not fit int16: no number",
    ]  # fmt: skip
    assert rows[6] == {"offset": 8, "carrier": None, "delay": None}  # 6 and 7 are rejected
    assert in_chunks.run.reports["bolt"] == {"filtered": 0, "rejected": 2}


def test_without_types_fields_are_texts() -> None:
    """Fields are texts, an empty one is None, and a chunk is taken apart."""
    bolt = CsvParseBolt.spec(fields=["a", "b"], delimiter=";")
    result = run_chunks(bolt, [chunk([b"1;", b'"";2', b"no"])])
    emitted = [(found.a, found.b) for found in result.emitted("bolt")]
    assert emitted[:2] == [("1", None), ("", "2")]  # and once more, when the chunk comes again in halves
    assert "1 field instead of 2" in result.errors[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fields": ["a=b"]}, "a field of CSV has no key"),
        ({"fields": ["-"]}, r"parse\.fields names no field"),
        ({"fields": ["a", "a"]}, "names 'a' twice"),
        ({"fields": ["a"], "types": {"a": "number"}}, "no type number"),
    ],
)
def test_bad_settings(settings: dict[str, Any], said: str) -> None:
    """What cannot be is refused when the topology is built."""
    with pytest.raises(ConfigError, match=said):
        CsvParseBolt.spec(**settings)


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", "é"])
def test_bad_delimiters(delimiter: str) -> None:
    """A delimiter is one character of ASCII that means nothing else."""
    with pytest.raises(ConfigError, match=r"parse\.delimiter"):
        run_bolt(CsvParseBolt.spec(fields=["a"], delimiter=delimiter), [{"origin": None, "value": "x"}])
