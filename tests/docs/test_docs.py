"""The documentation is true: its code runs, its links lead somewhere, its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate import PAGES

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])


def python_blocks(path: Path) -> str:
    """Return all Python code of a page."""
    return "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL))


@pytest.mark.slow
@pytest.mark.parametrize(("page", "tests_min"), [("test-a-topology.md", 4), ("simulate-a-topology.md", 1)])
def test_the_how_tos_on_testing_run(page: str, tests_min: int) -> None:
    """Every test function that the how-tos show passes as it stands there."""
    code = python_blocks(ROOT / "docs" / "how-to" / page)
    names: dict[str, object] = {"__name__": "how_to"}
    exec(compile(code, page, "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) >= tests_min
    for test in tests:
        test()  # type: ignore[operator]


@pytest.mark.broker
def test_the_how_to_on_tls_runs(tmp_path: Path) -> None:
    """The test that the page shows passes on a broker with TLS and a password."""
    names: dict[str, object] = {}
    exec(python_blocks(ROOT / "docs" / "how-to" / "tls-and-sasl.md"), names)
    names["test_a_record_comes_back"](tmp_path)  # type: ignore[operator]


def test_the_how_to_on_compaction_runs(tmp_path: Path) -> None:
    """The function that the how-to shows passes as it stands there."""
    names: dict[str, object] = {"__name__": "how_to"}
    code = python_blocks(ROOT / "docs" / "how-to" / "compact-a-directory.md")
    exec(compile(code, "compact-a-directory.md", "exec"), names)
    names["test_compaction_keeps_the_rows"](tmp_path)  # type: ignore[operator]


def test_the_quickstart_topology_is_well_formed(tmp_path: Path) -> None:
    """The topology of the quickstart passes the check."""
    from downspout.cli import main

    file = tmp_path / "orders.py"
    file.write_text(python_blocks(ROOT / "docs" / "quickstart.md"), encoding="utf-8")
    assert main(["check", str(file)]) == 0


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_current(name: str) -> None:
    """A page that is made from a table says what the table says (`make docs` writes it)."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PAGES[name]()


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file that exists."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
