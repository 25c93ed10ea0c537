"""The manual is free of the turns of phrase that its style names, and the style sees them."""

from __future__ import annotations

from docs.prose import PAGES, STYLE, findings


def test_the_manual_has_no_finding() -> None:
    """No page has a sentence that a native reader would stop at, as far as patterns can tell."""
    assert [(page.name, *found) for page in PAGES for found in findings(page.read_text(encoding="utf-8"))] == []


def test_the_style_sees_what_it_names() -> None:
    """A pattern is found across the ends of lines and in cells, and not in code, links or headings."""
    text = "## Where files go of which\n\nThe files are renamed\ninto sight. `of which`\n\n| a | it shuts out b |\n"
    assert [number for number, _ in findings(text)] == [3, 6]
    assert [text for _, text in findings("It ends. Where polls bring none, it waits.")] == [
        "'. Where polls ': better If …"
    ]
    assert len(list(findings("word " * 60))) == 1
    assert len(STYLE) > 20
