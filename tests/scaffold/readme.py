"""The commands of a project's README, run as its reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""A block: its language, none for commands, and its text."""
LIMIT_S = 600


def commands(readme: Path) -> dict[str, list[str]]:
    sections = SECTION.findall(readme.read_text(encoding="utf-8"))
    return {
        title: [line for language, block in BLOCK.findall(text) if not language for line in block.splitlines()]
        for title, text in sections
    }


class Shell:
    """Runs commands in a project, with the programs of one environment first in the PATH."""

    def __init__(self, project: Path, home: Path, programs: Path) -> None:
        self.project = project
        self._environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        self._environ |= {"DOWNSPOUT_HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        self.printed: dict[str, str] = {}

    def run(self, *lines: str) -> None:
        """Run each command; what one printed is kept, and one that fails ends the test."""
        for line in lines:
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.project,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
            )
            self.printed[line] = done.stdout
            assert done.returncode == 0, f"{line}\n{done.stdout}"

    def said(self, beginning: str) -> str:
        """Return what the last command that begins so has printed."""
        return next(text for line, text in reversed(self.printed.items()) if line.startswith(beginning))


@contextmanager
def shell(project: Path, home: Path, stops: Sequence[str], programs: Path | None = None) -> Iterator[Shell]:
    """Give a shell in a project; what was started there is stopped, also after a failure."""
    made = Shell(project, home, programs or Path(sys.executable).parent)
    try:
        yield made
    finally:
        for line in stops:
            try:
                made.run(line)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                print(error)
