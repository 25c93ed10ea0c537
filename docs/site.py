"""Build the docs site: lay out its pages in build/pages, and let MkDocs make build/site of them (mkdocs.yml).

The pages are those of the repository. What differs is where some lie, and so the links between them; pages of the API
and of single source files are made here.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from docs.contents import MOVED

ROOT = Path(__file__).resolve().parents[1]
KEPT = {".md", ".json", ".css", ".js", ".svg", ".png"}
"""Suffixes of files that are on the site as they are; others are shown as source."""
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
API = re.compile(r"\bapi/([\w.]+)\.md$", re.MULTILINE)
"""A page of the API, as the navigation in mkdocs.yml names it."""
CALLED = ["^[A-Z].*[a-z]", "^(spec|reject|read_table|split_words|with_origins)$"]
"""Names in the modules of components that users call; the others are called by engines."""
SETTINGS = {
    "spouts.kafka": "kafkaspout",
    "bolts.parse": "jsonparsebolt-and-csvparsebolt",
    "bolts.lookup": "lookupbolt",
    "bolts.parquet": "parquetbolt-and-aggregatebolt",
    "bolts.aggregate": "parquetbolt-and-aggregatebolt",
}
"""The heading under which the page of settings has those of a module."""


def place(file: str) -> str | None:
    """Return where a file of the repository is on the site; None for a folder.

    >>> place("README.md"), place("docs/glossary.md"), place("bench/results/peers.md")
    ('index.md', 'glossary.md', 'results/peers.md')
    """
    if file in MOVED:
        return MOVED[file]
    if file.startswith(("docs/", "bench/results/")) and PurePosixPath(file).suffix in KEPT:
        return file.partition("/")[2]
    return f"source/{file}.md" if (ROOT / file).is_file() else None


def pages() -> Iterator[str]:
    """Yield the files that are pages of the site as they are, but for their links."""
    yield from MOVED
    for folder in ("docs", "bench/results"):
        for file in sorted((ROOT / folder).rglob("*.md")):
            if (name := file.relative_to(ROOT).as_posix()) not in MOVED:
                yield name


def relinked(file: str, text: str, sources: set[str]) -> str:
    """Return a page with its links as they are on the site, and note the source files that it links to.

    A link that leads to a folder becomes plain text.
    """
    spans: list[str] = []

    def hide(match: re.Match[str]) -> str:
        spans.append(match[0])
        return f"\0{len(spans) - 1}\0"

    def link(match: re.Match[str]) -> str:
        if "://" in match[2]:
            return match[0]
        target = normpath(PurePosixPath(file).parent / match[2])
        to = place(target)
        if to is None:
            return match[1]
        if to.startswith("source/"):
            sources.add(target)
        return f"[{match[1]}]({relpath(to, PurePosixPath(place(file) or file).parent)}{match[3] or ''})"

    return re.sub(r"\0(\d+)\0", lambda match: spans[int(match[1])], LINK.sub(link, CODE.sub(hide, text)))


def source_page(file: str) -> str:
    """Return a page that shows a file of the repository."""
    kind = {".py": "python", ".json": "json", ".toml": "toml"}.get(PurePosixPath(file).suffix, "")
    return f"# {file}\n\n```{kind}\n{(ROOT / file).read_text(encoding='utf-8')}```\n"


def api_page(module: str) -> str:
    """Return the page of a module, for mkdocstrings to fill. In the wheel spouts and bolts lie below downspout.

    A module that offers what other modules define says so in ``__all__``, and its page names each. Of a component the
    page has what users call, and a link to its settings.
    """
    path = re.sub(r"^downspout\.(?=(spouts|bolts)\.)", "", module)
    settings = SETTINGS.get(path)
    lead = f"Arguments of `spec` are [its settings](../reference/settings.md#{settings}).\n\n" if settings else ""
    only = f"      filters: {CALLED}\n" if path != module else ""
    offered = getattr(import_module(path), "__all__", None)
    page = f"# {module}\n\n{lead}::: {path}\n    options:\n      members: {'false' if offered else 'null'}\n{only}"
    for name in [each for each in offered or () if not each.isupper()]:
        found = getattr(import_module(path), name)  # where it is defined: the package may only offer it
        page += f"\n::: {found.__module__}.{found.__qualname__}\n    options:\n      show_root_heading: true\n{only}"
    return page


def lay_out(target: Path) -> None:
    """Write all pages below a folder, which is made anew."""
    shutil.rmtree(target, ignore_errors=True)
    sources: set[str] = set()
    made = {str(place(file)): relinked(file, (ROOT / file).read_text(encoding="utf-8"), sources) for file in pages()}
    made |= {str(place(file)): source_page(file) for file in sources}
    made |= {
        f"api/{module}.md": api_page(module)
        for module in API.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    }
    for name, text in made.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text, encoding="utf-8")
    beside = ("docs/*.css", "docs/*.js", "docs/images/*.png", "docs/reference/*.json", "bench/results/*.svg")
    for file in [file for pattern in beside for file in ROOT.glob(pattern)]:
        there = target / str(place(file.relative_to(ROOT).as_posix()))
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, there)


def build(folder: Path) -> Path:
    """Lay out the pages in ``folder/pages``, and return ``folder/site``, built of them. A warning is an error."""
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # of what comes after MkDocs, which is no warning about our pages
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    lay_out(folder / "pages")
    config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(folder / "pages"), site_dir=str(folder / "site"))
    config.plugins.on_startup(command="build", dirty=False)
    build_site(config)
    config.plugins.on_shutdown()
    return folder / "site"


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    print(f"built {(build(ROOT / 'build') / 'index.html').relative_to(ROOT)}")
