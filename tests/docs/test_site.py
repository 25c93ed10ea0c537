"""The docs site is built without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.docstrings import as_markdown
from docs.site import build, place, relinked

LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)")


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Links and anchors of all pages lead somewhere, each page is in the navigation, and no API page is empty."""
    site = build(tmp_path)
    pages = {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    assert {"index.html", "quickstart.html", "results/peers.html"} <= pages.keys()
    assert "peers.svg" in pages["results/peers.html"]
    empty = [name for name, text in pages.items() if name.startswith("api/") and "doc-heading" not in text]
    assert empty == []
    assert [found for text in pages.values() for found in LOADED.findall(text)] == []
    assert (site / "search" / "search_index.js").is_file()


def test_links_are_those_of_the_site() -> None:
    """A link to a page that lies elsewhere on the site is changed, one to a source leads to its page, code is left."""
    sources: set[str] = set()
    text = "[a](../README.md#try-it) `[b](x.md)` [c](../topologies/word_count.py) [d](../bench) [e](https://e.org)"
    assert relinked("docs/quickstart.md", text, sources) == (
        "[a](index.md#try-it) `[b](x.md)` [c](source/topologies/word_count.py.md) d [e](https://e.org)"
    )
    assert sources == {"topologies/word_count.py"}
    assert place("bench/results/peers.md") == "results/peers.md"


def test_tables_become_blocks_of_code() -> None:
    """A table of a docstring keeps its columns, and the mark of a block of code is gone."""
    table = "==  ==\na   b\n==  ==\n1   2\n==  =="
    assert as_markdown(f"Of what::\n\n    x\n\n{table}") == f"Of what:\n\n    x\n\n```text\n{table}\n```"


def test_doctests_become_blocks_of_code() -> None:
    """Examples that follow one another are one block, and a role is the name in it."""
    assert as_markdown("As :func:`f` does.\n\n>>> f()\n1\n\n>>> f()\n2\n\nEnd.") == (
        "As `f` does.\n\n```pycon\n>>> f()\n1\n\n>>> f()\n2\n```\n\nEnd."
    )
