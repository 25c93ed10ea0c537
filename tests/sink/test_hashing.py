"""Hashes of data files."""

from __future__ import annotations

from pathlib import Path

import pytest

from downspout.sink import hash_of
from downspout.sink.storage import BLOCK_BYTES, hash_of_file


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 3])
def test_a_file_has_the_hash_of_its_content(tmp_path: Path, size: int) -> None:
    """Read block by block a file has the hash that its writer computed of the whole."""
    content = bytes(number % 251 for number in range(size))
    (tmp_path / "file").write_bytes(content)
    assert hash_of_file(tmp_path / "file") == hash_of(content)
