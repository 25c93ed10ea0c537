"""Makes docs/README.md, the list of all pages, from the navigation in mkdocs.yml (``make docs``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import relpath
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages whose place on the site is another than in the repository."""
LISTED_ELSEWHERE = ("index.md", "pages.md", "api/", "results/")
"""Where the names of pages begin that the list leaves out: itself, and what other pages list or only the site has."""
INTRO = """# All pages

Start with the [quickstart](quickstart.md). `make docs` builds these pages as a site in `build/site`, with search and
the API reference.

| promise | explained in | checked by |
| --- | --- | --- |
"""


PROMISES = (
    (
        "No record is lost, and no row is written twice.",
        "[Exactly once](concepts/exactly-once.md)",
        "`downspout audit`, `make chaos` ([result](../bench/results/chaos.md)), `downspout simulate`",
    ),
    (
        "Unmodified streamparse components run on each engine.",
        "[Run a streamparse project](how-to/run-on-storm.md)",
        "`make storm-demo`, `make spark-demo`",
    ),
    ("The engines agree.", "[Change engines](how-to/change-engines.md)", "`downspout compare`"),
    (
        "One bad record does not stop the others.",
        "[Bad records](how-to/bad-records.md)",
        "[the cost of bad records](../bench/results/failures.md)",
    ),
    (
        "It is fast.",
        "[How fast it is](concepts/how-fast.md)",
        "[peers](../bench/results/peers.md), [latency](../bench/results/latency.md)",
    ),
    (
        "It says why it stopped.",
        "[Exit codes](reference/exit-codes.md)",
        "errors name the record (`orders[3]@918`), the cause and a hint",
    ),
)


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without calling what it names in Python."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> list[dict[str, Any]]:
    """Return the navigation: sections, each with pages and further sections."""
    nav: list[dict[str, Any]] = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)["nav"]
    return nav


def file_of(name: str) -> str:
    """Return which file of the repository is a page of the site.

    >>> file_of("index.md"), file_of("glossary.md"), file_of("results/peers.md")
    ('README.md', 'docs/glossary.md', 'bench/results/peers.md')
    """
    moved = {place: file for file, place in MOVED.items()}
    return moved.get(name) or f"{'bench' if name.startswith('results/') else 'docs'}/{name}"


def title_of(file: str) -> str:
    """Return the heading of a page."""
    return (ROOT / file).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def pages_of(section: list[Any]) -> Iterator[str]:
    """Yield a line for each page of a section, and a heading for each section in it."""
    for entry in section:
        title, content = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(content, list):
            lines = list(pages_of(content))
            yield from ["", f"**{title}**", "", *lines] if lines else []
        elif not content.startswith(LISTED_ELSEWHERE):
            file = file_of(content)
            yield f"* [{title or title_of(file)}]({relpath(file, 'docs')})"


def contents_page() -> str:
    """Return docs/README.md."""
    text = INTRO + "".join(f"| {' | '.join(row)} |\n" for row in PROMISES)
    for section in navigation():
        for title, content in section.items():
            text += f"\n## {title}\n\n" + "\n".join(pages_of(content)).lstrip("\n") + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)
