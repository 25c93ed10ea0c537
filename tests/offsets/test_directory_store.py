"""Offsets beside the log of a sink's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bolts.parquet import ParquetBolt
from downspout.sink import notes
from downspout.sink.notes import DirectoryStore, open_directory_store
from downspout.spout import OffsetStoreError, StoreContext, StoredOffset
from tests.offsets.store_contract import P0, P1, Open, StoreContract
from tests.sink.test_sink_bolts import make, rows, tup


class TestDirectory(StoreContract):
    @pytest.fixture
    def open_bare(self, tmp_path: Path) -> Open:
        return lambda group: open_directory_store(f"parquet:///{tmp_path}/out", StoreContext(group))


def test_a_sink_and_the_offsets_share_a_directory(tmp_path: Path) -> None:
    """Whichever comes first, a sink writes and reads its directory as if no offsets were in it."""
    store = DirectoryStore(tmp_path, "g")
    epoch = store.claim([P0])[P0].epoch
    for number in range(3):
        bolt = make(ParquetBolt, tmp_path)
        bolt.process(tup(number))
        bolt.drain()
        store.store({P0: StoredOffset(number + 1, "", epoch)})
    assert [row["_offset"] for row in rows(tmp_path)] == [0, 1, 2]
    assert store.load([P0])[P0].offset == 3


def test_few_files_are_kept(tmp_path: Path) -> None:
    """However often is stored, no more than the last files are there."""
    store = DirectoryStore(tmp_path, "g")
    epoch = store.claim([P0])[P0].epoch
    for number in range(notes.KEPT + 20):
        store.store({P0: StoredOffset(number, "", epoch)})
    assert len(list(tmp_path.rglob("*.json"))) == notes.KEPT
    assert store.load([P0])[P0].offset == notes.KEPT + 19


def test_a_process_that_was_paused_for_long_changes_nothing_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it was paused others have removed the file after the one it read; its change is made on what is there."""
    monkeypatch.setattr(notes, "KEPT", 5)
    slow, quick = DirectoryStore(tmp_path, "g"), DirectoryStore(tmp_path, "g")
    mine, others = slow.claim([P0])[P0].epoch, quick.claim([P1])[P1].epoch
    real, paused = slow.put, []

    def put(number: int, state: Any) -> bool:
        if not paused:
            paused.append(number)
            for offset in range(20):
                quick.store({P1: StoredOffset(offset, "", others)})
        return real(number, state)

    monkeypatch.setattr(slow, "put", put)
    slow.store({P0: StoredOffset(7, "", mine)})
    assert {tp: stored.offset for tp, stored in quick.list().items()} == {P0: 7, P1: 19}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1, "offsets": [["t", 0, 5, "", 1]]}'])
def test_a_file_that_is_damaged_is_an_error(tmp_path: Path, content: str) -> None:
    """A file that is torn or was edited is named; nothing starts from nothing because of it."""
    store = DirectoryStore(tmp_path, "g")
    store.claim([P0])
    (path,) = tmp_path.rglob("*.json")
    assert json.loads(path.read_text())["format"] == 1
    path.write_text(content)
    with pytest.raises(OffsetStoreError, match=f"{path} cannot be read"):
        store.claim([P0])
