"""Links of the documentation resolve, pages are reachable, and pages on the code name existing code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.packages import changes, packages

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
ON_THE_CODE = [
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs" / name for name in ("architecture.md", "glossary.md")),
]
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+/[\w.-]+\.(?:py|toml|json)")
NAME = re.compile(r"[A-Z]\w*[a-z]\w*\.\w+")
ROW = re.compile(r"^\| `(\w+)/` \|.*?\| (.+) \|$", re.MULTILINE)
"""A row of the file map: the package, and its files."""


@cache
def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return what GitHub lets a link to a page end with: its headings in lower case, without marks."""
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{count}" if count else slug)
    return frozenset(found)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file and the anchor of each link that stays in the repository."""
    for target in LINK.findall(SPAN.sub("", prose(page))):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def names(text: str) -> Iterator[str]:
    """Yield what a module defines: its functions and classes, and the methods of these, with the class in front."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef))


@cache
def defined(file: Path) -> frozenset[str]:
    return frozenset(names(file.read_text(encoding="utf-8")))


@cache
def defined_anywhere() -> frozenset[str]:
    files = [file for folder in ("downspout", "spouts", "bolts") for file in ROOT.glob(f"{folder}/**/*.py")]
    return frozenset().union(*map(defined, files))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link leads to a file, and its anchor to a heading of it."""
    wrong = []
    for file, anchor in links(page):
        if not file.exists():
            wrong.append(f"no file {file}")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            wrong.append(f"no heading #{anchor} in {file.name}")
    assert not wrong


def test_all_pages_can_be_reached() -> None:
    """Whoever follows links from the README comes to each page."""
    reached, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md" and page.is_file():
            reached.add(page)
            ahead += [file for file, _ in links(page)]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


@pytest.mark.parametrize("page", ON_THE_CODE, ids=lambda page: page.name)
def test_pages_on_the_code_name_what_is_there(page: Path) -> None:
    """Each file that such a page names exists, and so does each ``path::name`` in it and each ``Class.method``."""
    wrong = []
    for span in SPAN.findall(ROW.sub("", prose(page))):
        path, _, name = span.partition("::")
        if FILE.fullmatch(path):
            file = next((file for file in (ROOT / "downspout" / path, ROOT / path) if file.is_file()), None)
            if file is None:
                wrong.append(f"no file {path}")
            elif name and name not in defined(file):
                wrong.append(f"no {name} in {path}")
        elif NAME.fullmatch(span) and span not in defined_anywhere():
            wrong.append(f"no {span}")
    assert not wrong


def test_packages_say_what_to_change_where() -> None:
    """Each package has lines for docs/where-to-change.md, and each file that they name is in it."""
    for package in packages():
        rows = list(changes(package))
        assert rows, package
        assert [file for _, file in rows if not (ROOT / "downspout" / package / file).is_file()] == [], package


@pytest.mark.parametrize("rule", ["batch ranges", "commit metadata", "Spark planning", "Spark commits a sink's batch"])
def test_rules_that_readers_looked_for_have_a_row(rule: str) -> None:
    """What fresh readers of the code did not find has a row."""
    assert rule in (ROOT / "docs" / "where-to-change.md").read_text(encoding="utf-8")


def test_architecture_is_read_in_ten_minutes() -> None:
    """The page has at most 1,500 words."""
    assert len((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split()) <= 1500
