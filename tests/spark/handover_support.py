"""Shared code for tests of the hand-over: checkpoints written by hand, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from downspout.cli import main

QUERY = '{"id":"6bce5c2d-8ee5-4a3a-a0c9-a8a8a8a8a8a8"}'
HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":1763750000000,"conf":{"spark.sql.shuffle.partitions":"4"}}'


def write_checkpoint(folder: Path, *batches: str, finished: int | None = None, version: str = "v1") -> Path:
    """Write a checkpoint whose batches end so; the first ``finished`` of them, by default all, are finished."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(QUERY)
    for number, lines in enumerate(batches):
        (folder / "offsets" / str(number)).write_text(f"{version}\n{HEAD}\n{lines}")
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc\0\xff")
    for number in range(len(batches) if finished is None else finished):
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


class Command:
    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._bootstrap = bootstrap
        self._capsys = capsys

    def run(self, action: str, *options: str) -> tuple[int, str, str]:
        self._capsys.readouterr()  # what others have said before
        code = main(["offsets", action, *options, "--bootstrap", self._bootstrap])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def facts(self, action: str, *options: str) -> dict[str, Any]:
        code, out, err = self.run(action, *options, "--json")
        assert (code, err) == (0, "")
        return dict(json.loads(out))

    def refused(self, action: str, *options: str) -> str:
        """Return the error of a command that prints nothing else."""
        code, out, err = self.run(action, *options)
        assert code in (2, 4, 6), err
        assert out == ""
        return err
