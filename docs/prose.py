"""Looks for turns of phrase that stop a native reader, in the manual and in what it is made from (``make lint``).

Each row of ``STYLE`` is a kind of sentence that this manual once had, and what to write instead. Code, links and
headings are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
STYLE = (
    (r"into sight|in sight\b", "visible, published"),
    (r"walks? through the code", "follows … through the code"),
    (r"nothing (?:is|was) there", "idle, empty"),
    (r"(?:what|all that) there is", "name it"),
    (r"\bof which\b", "two sentences"),
    (r"of (?:theirs|its own's) that", "any … of them"),
    (r"in the place of", "instead of"),
    (r"\bhand(?:s|ed|ing)? (?:it |them )?on\b", "pass on"),
    (r"takes? \w+ along when", "name the effect"),
    (r"can(?:not)? be told", "is unavailable, can be distinguished"),
    (r"in vain", "empty, without effect"),
    (r"shuts? out", "fences, rejects"),
    (r"the dear kind", "expensive"),
    (r"changes? (?:nothing|anything) any more", "has no effect"),
    (r"makes? many of one", "emits several per input"),
    (r"there is neither", "with neither"),
    (r"[.:;] Where (?!to\b)\w+ (?!\?)", "If …"),
    (r"\bwhere there (?:is|are) (?:no|none)", "without …"),
    (r"\b(?:says?|tells?) of (?:it|each|all)\b", "reports, logs"),
    (r", so [^.;:]{3,80}, so ", "no chain of so"),
    (r"\bit goes by\b", "depends on, uses"),
    (r"\bother(?:wise)? than (?:in|on|with) a wheel", "differently"),
    (r"\bthat is, that\b", "rephrase"),
    (r"\bas far as (?:the|a) \w+ has", "if … has"),
    (r"\bgo(?:es)? on (?:beside|with what)", "continue"),
)
"""Patterns, and what is better."""
WORDS_MAX = 48
"""Most words of a sentence."""
CODE = re.compile(r"^```.*?^```$|`[^`]*`|\]\([^)]*\)|^#+ [^\n]*$|<!--.*?-->", re.DOTALL | re.MULTILINE)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, cells and list items of a page, each with the number of its first line."""
    plain = CODE.sub(lambda match: "X" + "\n" * match[0].count("\n"), text)
    number, paragraph, first = 0, list[str](), 1
    for number, line in enumerate([*plain.splitlines(), ""], 1):
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in line.strip("|").split("|"))
        elif not line.strip() or re.match(r"\s*(?:[*-]|\d+\.) ", line):
            if paragraph:
                yield first, " ".join(paragraph)
            paragraph, first = ([line.strip()] if line.strip() else []), number
        else:
            first = first if paragraph else number
            paragraph.append(line.strip())


def findings(text: str) -> Iterator[tuple[int, str]]:
    """Yield what a native reader would stop at: the line, and what is better."""
    for number, paragraph in prose(text):
        for pattern, better in STYLE:
            if found := re.search(pattern, paragraph):
                yield number, f"{found[0]!r}: better {better}"
        for sentence in re.split(r"(?<=[.!?:;]) +", paragraph):
            if (words := len(sentence.split())) > WORDS_MAX:
                yield number, f"a sentence of {words} words: {sentence[:60]}…"


def main() -> int:
    """Print what is found in all pages; return 1 if there is any."""
    found = [(page, *each) for page in PAGES for each in findings(page.read_text(encoding="utf-8"))]
    for page, number, text in found:
        print(f"{page.relative_to(ROOT)}:{number}: {text}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
