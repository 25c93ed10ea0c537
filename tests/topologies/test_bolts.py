"""The pure logic of the bolts between spout and sink."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bolts.parse import JsonParseBolt, split_fields
from bolts.split import split_words
from downspout.errors import ConfigError
from downspout.parse import Paths, parse_object
from topologies.flight_enrich import (
    ADDED_FIELDS,
    FLIGHT_FIELDS,
    FlightEnrichBolt,
    Tables,
    enrich,
    load_tables,
    package_directory,
)

names = st.text(st.characters(codec="utf-8"), min_size=1)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8"))


@given(document=st.dictionaries(names, scalars), others=st.lists(names))
def test_parse_gives_what_the_object_holds(document: dict[str, Any], others: list[str]) -> None:
    """Each named key yields the object's value, and None where the object lacks it, in the order of the names."""
    keys = [*others, *document]
    for value in (json.dumps(document), json.dumps(document).encode()):
        assert parse_object(value, Paths(list(map(json.dumps, keys)))) == [document.get(key) for key in keys]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[1]", "an array"),
        ('"text"', "a string"),
        ("1", "a number"),
        ("1.5", "a number"),
        ("true", "true or false"),
        ("null", "null"),
    ],
)
def test_parse_refuses_what_is_no_object(value: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"this is {said}"):
        parse_object(value, Paths(["a"]))


@pytest.mark.parametrize("value", ["", " ", "{", '{"a": }', '{"a": NaN}', b'{"a": "\xff"}', "{}{}"])
def test_parse_refuses_what_is_no_json(value: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - orjson words it
        parse_object(value, Paths(["a"]))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (["origin"], "carries the row's identity. Try: another name for it: `from_origin=origin`"),
        (["a", "b", "a=c"], "names 'a' twice"),
        (["=a"], "names no field"),
        (["a="], "names no field"),
    ],
)
def test_parse_refuses_bad_fields(fields: list[str], said: str) -> None:
    """A field that is doubled, nameless or would hide the origin is refused when the topology is built."""
    with pytest.raises(ConfigError, match=said):
        split_fields(fields)
    with pytest.raises(ConfigError, match=said):
        JsonParseBolt.spec(fields=fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [(["user.id"], r"Try: user_id=user\.id"), (["a=b..c"], "where the value stands"), (["a=[0]"], "where the value")],
)
def test_a_path_needs_a_name(fields: list[str], said: str) -> None:
    """A path without a name for its field, or one that cannot be read, is refused when the topology is built."""
    with pytest.raises(ConfigError, match=said):
        JsonParseBolt.spec(fields=fields)


def test_parse_needs_fields() -> None:
    """A parse bolt that was given no fields is refused when the topology is built."""
    with pytest.raises(ConfigError, match=r"parse\.fields is not set"):
        JsonParseBolt.spec()


def test_parse_outputs_follow_the_fields() -> None:
    """The outputs are the origin and the names of the fields, and the configuration carries the mapping."""
    spec = JsonParseBolt.spec(fields=["carrier", "from_airport=origin"])
    assert spec.outputs["default"].output_fields == ["origin", "carrier", "from_airport"]
    assert json.loads(spec.config) == {"parse.fields": ["carrier", "from_airport=origin"]}


@given(st.text())
def test_split_loses_nothing(text: str) -> None:
    """The words are the text without its white space, and none is empty."""
    words = split_words(text)
    assert "".join(words) == "".join(text.split())
    assert all(words)


@pytest.fixture(scope="module")
def tables() -> Tables:
    return load_tables(package_directory())


def flight(**values: Any) -> SimpleNamespace:
    """Return a flight of which only these fields are known."""
    return SimpleNamespace(**(dict.fromkeys(FLIGHT_FIELDS) | values))


def test_enrich_adds_what_the_tables_know(tables: Tables) -> None:
    """A flight gets names, place, plane, moment and route, as the package's files have them."""
    found = enrich(
        flight(
            carrier="UA", tailnum="N14228", from_airport="EWR", to_airport="IAH",
            time_hour="2013-01-01T10:00:00Z", minute=15,
        ),
        tables,
    )  # fmt: skip
    assert dict(zip(ADDED_FIELDS, found, strict=True)) == {
        "scheduled_at": "2013-01-01T10:15:00Z",
        "route": "EWR-IAH",
        "airline": "United Air Lines Inc.",
        "from_name": "Newark Liberty Intl",
        "to_name": "George Bush Intercontinental",
        "to_lat": 29.984433,
        "to_lon": -95.341442,
        "to_zone": "America/Chicago",
        "manufacturer": "BOEING",
        "model": "737-824",
        "plane_year": 1999,
    }


def test_enrich_knows_all_codes_of_the_package(tables: Tables) -> None:
    """Every line of the package's files is found under its code."""
    for file, key, table in (
        ("airlines", "carrier", tables.airlines),
        ("airports", "faa", tables.airports),
        ("planes", "tailnum", tables.planes),
    ):
        with (package_directory() / f"{file}.csv").open(encoding="utf-8", newline="") as lines:
            assert {row[key] for row in csv.DictReader(lines)} == set(table)


def test_enrich_leaves_unknown_codes_empty(tables: Tables) -> None:
    """What no table knows is None, and so is the route of a flight that lacks an airport."""
    for codes in ({}, {"carrier": "??", "tailnum": "N0", "from_airport": "???", "to_airport": "???"}):
        added = dict(zip(ADDED_FIELDS, enrich(flight(**codes), tables), strict=True))
        assert added.pop("route") == ("???-???" if codes else None)
        assert set(added.values()) == {None}


def test_enrich_names_the_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"airlines\.csv cannot be read"):
        load_tables(tmp_path)


def test_enrich_names_the_column_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "airlines.csv").write_text("code,name\nUA,United\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"airlines\.csv has no column 'carrier'"):
        load_tables(tmp_path)


def test_enrich_outputs_name_no_field_twice() -> None:
    """The enriched flight's fields are distinct, and the identity comes first."""
    assert len(set(FlightEnrichBolt.outputs)) == len(FlightEnrichBolt.outputs)
    assert FlightEnrichBolt.outputs[0] == "origin"
