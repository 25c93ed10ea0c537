"""Our files beside Spark's checkpoint: loading, and durability."""

from __future__ import annotations

import grp
import os
import pickle
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from downspout.component import Failure
from downspout.dead_letters import PlainRecord
from downspout.errors import ConfigError
from downspout.spark import RecordPlace, claim
from downspout.spark.topology import checkpoint_claim as checkpoint
from downspout.spark.topology.checkpoint_claim import EXHAUSTED_FILE, recall, remember
from downspout.spark.topology.stage_rows import ExhaustedRecord
from tests.spark import topology_bolts as b
from tests.spark.topology.test_topology_plan import planned

PLACE = RecordPlace("t", "x1", 0, 7)
RECORD = PlainRecord("t", 0, 7, 1, b"k", None, [("h", b"v")])
EXHAUSTED = {
    place: ExhaustedRecord("spout", place, record, 2, 3, 4, Failure("exception", "bolt", 5, "ValueError: no", "stack"))
    for place, record in ((PLACE, RECORD), (PLACE._replace(offset=8), None))
}


def test_what_a_batch_is_committed_without_comes_back(tmp_path: Path) -> None:
    """The batch and its exhausted records are read as they were written, with and without their records."""
    assert recall(tmp_path) == (-1, {})
    remember(tmp_path, 4, EXHAUSTED)
    assert recall(tmp_path) == (4, EXHAUSTED)


class Forged:
    """What runs a program where it is unpickled."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._target),)


@pytest.mark.parametrize("nested", [False, True])
def test_nothing_that_others_wrote_is_run(tmp_path: Path, nested: bool) -> None:
    """A forged file is an error that names it, and nothing of what it asks for is done."""
    forged = Forged(tmp_path / "run")
    (tmp_path / EXHAUSTED_FILE).write_bytes(pickle.dumps((1, {PLACE: forged}) if nested else forged))
    with pytest.raises(ConfigError, match=r"_downspout\.given-up was not written by Downspout: .*mkdir has no place"):
        recall(tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"", b"\x80", pickle.dumps(7), pickle.dumps((1, {1: 2})), pickle.dumps(("a", {}))])
def test_a_torn_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / EXHAUSTED_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match="given-up was not written by Downspout"):
        recall(tmp_path)


def test_of_two_runs_that_claim_a_new_checkpoint_both_get_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sinks' entries have this name: if the file got another one, the next run would commit a batch twice."""
    plan, first = planned(b.counting(tmp_path)), list[str]()

    def name_while_another_run_claims() -> UUID:
        if not first:
            first.append("")
            first[0] = claim(tmp_path / "c", plan)
        return uuid4()

    monkeypatch.setattr(checkpoint.uuid, "uuid4", name_while_another_run_claims)
    assert claim(tmp_path / "c", plan) == first[0] == claim(tmp_path / "c", plan)


def test_the_folder_is_forced_to_the_disk_after_each_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files are under their names before their folder is synced: else a power failure may take the name back."""
    synced: list[tuple[Path, set[str]]] = []
    monkeypatch.setattr(
        checkpoint, "sync_folder", lambda folder: synced.append((folder, {path.name for path in folder.iterdir()}))
    )
    claim(tmp_path / "c", planned(b.counting(tmp_path)))
    remember(tmp_path / "c", 4, EXHAUSTED)
    ours = {"_downspout.json"}
    assert synced == [(tmp_path / "c", ours), (tmp_path / "c", ours | {EXHAUSTED_FILE})]


def test_a_checkpoint_for_everybody_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder in which everybody may write is named, with the cure: the state in it is unpickled."""
    made = planned(b.counting(tmp_path))
    (tmp_path / "c").mkdir(mode=0o755)
    claim(tmp_path / "c", made)
    assert not caplog.records
    (tmp_path / "c").chmod(0o777)
    claim(tmp_path / "c", made)
    assert f"everybody on this machine may write to the checkpoint {tmp_path / 'c'}" in caplog.text
    assert "chmod go-w" in caplog.text


@pytest.mark.parametrize(
    ("group", "members", "said"),
    [
        ("ada", [], None),
        ("ada", ["ada"], None),
        ("ada", ["ada", "bob"], "the group ada"),
        ("users", [], "the group users"),
        (None, [], f"the group {os.getgid()}"),
    ],
)
def test_a_checkpoint_for_a_group_is_warned_of(
    group: str | None,
    members: list[str],
    said: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So is one in which a group may write, unless that is the owner's own, with nobody else in it."""

    def find(number: int) -> Any:
        if group is None:
            raise KeyError
        return SimpleNamespace(gr_name=group, gr_mem=members)

    monkeypatch.setattr(grp, "getgrgid", find)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_name="ada"))
    (tmp_path / "c").mkdir()
    os.chown(tmp_path / "c", -1, os.getgid())
    (tmp_path / "c").chmod(0o775)
    claim(tmp_path / "c", planned(b.counting(tmp_path)))
    assert [record.getMessage().partition(" may write to")[0] for record in caplog.records] == ([said] if said else [])
    assert not said or "chmod g-w" in caplog.text
