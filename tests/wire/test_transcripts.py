from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.wire.transcript import FOLDER, play

TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_spout_answers_as_written(path: Path, tmp_path: Path) -> None:
    """Each command of Storm's is answered as the transcript says, and the group's commits are those in it."""
    assert play(path, tmp_path) == path.read_text(encoding="utf-8")


def test_the_transcripts_keep_to_the_protocol() -> None:
    """Every command gets one sync, behind its emits; ids are texts; nobody waits for task ids or reports metrics."""
    commands = emits = 0
    for path in TRANSCRIPTS:
        asked = False
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("→"):
                assert not asked, f"{path.stem}: nothing answered what came before {line}"
                asked = line not in ("→ handshake", "→ end of input")
                commands += asked
            if line.startswith("←"):
                message = json.loads(line.removeprefix("←"))
                if message.get("command") == "sync":
                    assert asked, f"{path.stem}: a sync that nobody asked for"
                    asked = False
                elif message.get("command") == "emit":
                    assert asked, f"{path.stem}: an emit outside of a command"
                    emits += 1
                    assert message["need_task_ids"] is False
                    assert isinstance(message.get("id", ""), str)
                else:
                    assert message.get("command", "pid") in ("log", "pid")
    assert emits > 20
    assert commands > 40
