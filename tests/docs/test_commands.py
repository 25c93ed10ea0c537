"""All commands in the docs exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from downspout.cli import build_parser

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of each ``downspout …`` in a page's blocks of code, and of each in its prose with a file."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    lines += [span for span in re.findall(r"`(downspout [^`]*)`", BLOCK.sub("", text)) if ".py" in span]
    shown = [line.removeprefix("$ ").partition(" > ")[0] for line in lines]
    found = [shlex.split(line, comments=True) for line in shown if line.startswith("downspout ")]
    return [words[1:] for words in found if not {"…", "|"} & set(" ".join(words))]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_commands_of_a_page_can_be_parsed(page: Path) -> None:
    parser = build_parser()
    for words in commands(page):
        try:
            parser.parse_args(words)
        except SystemExit:
            pytest.fail(f"downspout {shlex.join(words)}")


def test_enough_commands_are_found() -> None:
    """The pages show dozens of commands, and the test above sees them."""
    assert sum(len(commands(page)) for page in PAGES) > 40
