from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from downspout.sink.schema import NULL_FOLDER, by_hive_folder, hive_folder, is_too_long

VALUES = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.sampled_from(["", ".", "..", "../x", "a/b", "a=b", "%2F", "\x00", "ü", NULL_FOLDER]),
)


def decode(folder: str, column: str) -> str | None:
    name, equals, value = folder.partition("=")
    assert (name, equals) == (column, "=")
    if value == NULL_FOLDER:
        return None
    return re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), value)


@given(VALUES)
def test_a_folder_reads_back_as_its_value(value: str | None) -> None:
    """Each value comes back from its folder's name; the empty text comes back as null, as in Spark."""
    assert decode(hive_folder("c", value), "c") == (value or None)


@given(VALUES)
def test_a_folder_is_one_visible_name(value: str | None) -> None:
    """No value makes a path of several parts, a hidden name, or a name that a file system refuses."""
    folder = hive_folder("c", value)
    assert PurePosixPath(folder).parts == (folder,)
    assert "\x00" not in folder
    assert folder[0] not in "._"


@given(st.lists(st.tuples(VALUES, st.none() | st.integers(-3, 3) | st.booleans()), max_size=40))
def test_split_loses_and_doubles_nothing(keys: list[tuple[str | None, Any]]) -> None:
    """Each row is in exactly one part, the parts' folders differ, and each row is in the folder of its values."""
    numbers = [None if second is None else int(second) for _, second in keys]
    table = pa.table(
        {
            "n": pa.array(range(len(keys)), pa.int64()),
            "a": pa.array([first for first, _ in keys], pa.string()),
            "b": pa.array(numbers, pa.int64()),
        }
    )
    parts = list(by_hive_folder(table, ["a", "b"]))
    assert len({folder for folder, _ in parts}) == len(parts)
    found = {row: folder for folder, part in parts for row in part.column("n").to_pylist()}
    assert sum(part.num_rows for _, part in parts) == len(found) == len(keys)
    for row, ((first, _), second) in enumerate(zip(keys, numbers, strict=True)):
        assert found[row] == f"{hive_folder('a', first)}/{hive_folder('b', second)}"
    for _, part in parts:
        assert part.column_names == ["n"]
        assert part.column("n").to_pylist() == sorted(part.column("n").to_pylist())


def test_null_and_empty_share_one_part() -> None:
    """Null and the empty text have one folder and so one part: two files of one name would overwrite each other."""
    table = pa.table({"n": [1, 2, 3], "a": ["", None, NULL_FOLDER]})
    parts = {folder: part.column("n").to_pylist() for folder, part in by_hive_folder(table, ["a"])}
    assert parts == {f"a={NULL_FOLDER}": [1, 2], f"a=%5F{NULL_FOLDER[1:]}": [3]}


def test_without_columns_there_is_one_part() -> None:
    """Without partition columns the table stays whole."""
    table = pa.table({"n": [1, 2]})
    assert list(by_hive_folder(table, [])) == [("", table)]


def test_the_length_is_counted_in_bytes() -> None:
    """A name is too long by its bytes on the disk, not by its letters."""
    assert not is_too_long("c", "x" * 253)
    assert is_too_long("c", "x" * 254)
    assert is_too_long("c", "ü" * 127)
    assert is_too_long("c", "/" * 85)
