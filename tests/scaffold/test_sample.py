from __future__ import annotations

from pathlib import Path

import pytest

from downspout.errors import ConfigError
from downspout.scaffold import infer as sample
from downspout.scaffold.infer import read_sample


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no records.*Try: one JSON object in each line"),
        (b"\n  \n", "no records"),
        (b'{"a": 1}\n{"a": \n', r"line 2: not JSON at character 6: Expecting value.*Try: "),
        (b'{"a": 1}\n\n[1]\n', r"line 3: an array, where an object is needed"),
        (b'{"a": 1}\n"x"', r"line 2: a string, where an object"),
        (b'{"a": "\xff"}', r"line 1: byte 8 is not UTF-8"),
        (b'{"a": NaN}', r"line 1: NaN is not JSON"),
        (b'{\n  "a": 1\n}', r"line 1: not JSON.*jq -c"),
        (b"[" * 100_000, r"line 1: "),
    ],
)
def test_a_line_that_is_no_object_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    """What is wrong with a sample is said with its line and a cure."""
    file = tmp_path / "sample.ndjson"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_sample(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A sample that does not exist, or is a folder, is an error of the option."""
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match=f"--from {path}: "):
            read_sample(path)


def test_a_line_without_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is longer than the limit is refused before it is in memory."""
    monkeypatch.setattr(sample, "LINE_BYTES_MAX", 20)
    file = tmp_path / "sample.ndjson"
    file.write_bytes(b'{"a": 1}\n{"a": "%s"}\n' % (b"x" * 100))
    with pytest.raises(ConfigError, match="line 2: longer than 20 bytes"):
        read_sample(file)


def test_only_the_first_records_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long file the first records count, and the result says that there are more; blank lines do not count."""
    monkeypatch.setattr(sample, "RECORDS_MAX", 2)
    file = tmp_path / "sample.ndjson"
    file.write_bytes(b'{"a": 1}\n\n{"a": 2}\r\n')
    found = read_sample(file)
    assert (found.lines, found.numbers, found.is_whole) == ([b'{"a": 1}', b'{"a": 2}'], [1, 3], True)
    file.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3}')
    found = read_sample(file)
    assert (found.objects, found.is_whole) == ([{"a": 1}, {"a": 2}], False)


def test_a_byte_order_mark_is_no_part_of_a_sample(tmp_path: Path) -> None:
    """A sample with a mark before its first record, as Windows' programs write it, is read without the mark."""
    (tmp_path / "sample.ndjson").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n')
    sample = read_sample(tmp_path / "sample.ndjson")
    assert sample.lines == [b'{"a": 1}', b'{"a": 2}']
