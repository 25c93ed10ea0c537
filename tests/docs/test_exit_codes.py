"""The page on exit codes matches the code."""

from __future__ import annotations

import re
from pathlib import Path

from downspout import errors
from downspout.audit import EXIT_CODES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "exit-codes.md"


def rows() -> dict[int, str]:
    """Return the lines of the page's tables by their code; 0 stands in both and is left out."""
    found = re.findall(r"^\| (\d+) \|(.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(code): text for code, text in found if code != "0"}


def test_every_error_is_on_the_page() -> None:
    """Each kind of error stands in the row of its exit code."""
    kinds = [errors.DownspoutError, *errors.DownspoutError.__subclasses__()]
    ours = [kind for kind in kinds if kind.__module__ == errors.__name__]
    assert len(ours) > 5
    for kind in ours:
        assert f"`{kind.__name__}`" in rows()[kind.exit_code]


def test_every_finding_of_the_audit_is_on_the_page() -> None:
    """Each kind of difference stands in the row of its exit code."""
    for kind, code in EXIT_CODES.items():
        assert f" {kind} " in rows()[code]
