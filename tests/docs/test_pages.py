"""Pages are laid out for people who read them as plain text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`]*`")
TARGET = re.compile(r"\]\([^)]*\)")
WORDS_MAX = 34


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_cell_is_at_most_a_sentence(page: Path) -> None:
    """No cell of a table has two sentences, or more words than one sentence bears."""
    lines = FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
    cells = [TARGET.sub("]", CODE.sub("X", cell)) for line in lines if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if re.search(r"[.!?] +[A-Z]", cell) or len(cell.split()) > WORDS_MAX] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_are_short(page: Path) -> None:
    """No line of prose has more than 120 characters, and no code in it is cut by the end of a line."""
    lines = FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
    prose = [line for line in lines if not line.startswith("|") and "http" not in line]
    assert [line for line in prose if len(line) > 120 or line.count("`") % 2] == []


def test_the_readme_is_read_in_a_minute() -> None:
    assert 250 <= len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 400
