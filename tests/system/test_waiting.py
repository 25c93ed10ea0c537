from __future__ import annotations

import threading

import pytest

from downspout.system.waiting import report_to_stderr, waiting


def test_what_takes_long_says_so_until_it_is_done() -> None:
    """While a block goes on there is line after line, of what it waits for at that moment; after it none."""
    said: list[str] = []
    third, parts = threading.Event(), iter(["one", "two", "three"])

    def tell(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            third.set()

    with waiting(lambda: next(parts, "more"), tell, every_s=0.001):
        assert third.wait(30)
    assert [line.partition(" … ")[0] for line in said[:3]] == ["one", "two", "three"]
    assert said[0].endswith(" 0 s")
    assert "downspout-waiting" not in [thread.name for thread in threading.enumerate()]


def test_what_is_done_at_once_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A block that ends before the first line is due leaves no trace, also where it fails."""
    with pytest.raises(ValueError, match="oh"), waiting("for nothing"):
        raise ValueError("oh")
    assert capsys.readouterr().err == ""
    report_to_stderr("a line")
    assert capsys.readouterr().err == "a line\n"
