"""Progress lines and rate limit of `downspout kafka produce`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from downspout.cli.kafka_produce import Pace, ProduceProgress
from downspout.producing.lines import LongLineError, split_lines
from downspout.testing import VirtualClock


def counts(sent: int, **more: int) -> SimpleNamespace:
    return SimpleNamespace(**{"sent": sent, "unknown": 0, "refused": 0, "in_flight": 0, "bytes": 2 * sent, **more})


def show(progress: ProduceProgress, clock: VirtualClock, seconds: float, sending: SimpleNamespace) -> None:
    """Let time pass, and the command show how far it is."""
    clock.sleep(seconds)
    for _ in range(16):
        progress.show(sending)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_one_line_on_a_terminal_and_rare_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """A terminal's line is written over each second, and gone in the end; a log gets lines after 1, 2 and 4 s."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    clock = VirtualClock()
    progress = ProduceProgress(clock, wanted=True)
    for second in range(1, 8):
        show(progress, clock, 1.0, counts(1000 * second, in_flight=5, refused=1))
    progress.end()
    said = capsys.readouterr().err
    line = "1,000 records written, 1,000/s, 2.0 kB, 5 without an answer, 1 refused"
    if is_terminal:
        assert said.startswith(f"\r{line}\x1b[K\r2,000 records")
        assert "\n" not in said
        assert said.endswith("7,000 records written, 1,000/s, 14 kB, 5 without an answer, 1 refused\x1b[K\r\x1b[K")
    else:
        assert [row.partition(" ")[0] for row in said.splitlines()] == ["1,000", "3,000", "7,000"]
        assert said.splitlines()[0] == line


def test_nothing_new_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    """While a log waits for lines that do not come, nothing is added to it; nor where lines are typed."""
    clock = VirtualClock()
    progress, silent = ProduceProgress(clock, wanted=True), ProduceProgress(clock, wanted=False)
    for _ in range(5):
        show(progress, clock, 10.0, counts(7))
        show(silent, clock, 10.0, counts(7))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_rate_is_kept_and_can_be_left() -> None:
    """So many per second on the whole, also after a pause; a request to stop is heard while it waits."""
    clock = VirtualClock()
    pace = Pace(100, clock)
    assert all(pace.wait(lambda: True) for _ in range(301))
    assert clock.monotonic() == pytest.approx(3.0, abs=0.02)
    slow = Pace(1, clock)
    assert slow.wait(lambda: False)  # the first may pass at once
    assert not slow.wait(lambda: False)


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    """However small the pieces in which it comes; shorter ones pass."""
    assert list(split_lines(iter([b"12345", b"678\n", b"12345678"]), 8)) == [b"12345678", b"12345678"]
    read = iter([b"ok\n", b"1234", b"5678", b"9", b"never read"])
    lines = split_lines(read, 8)
    assert next(lines) == b"ok"
    with pytest.raises(LongLineError, match="a line of more than 8 bytes"):
        next(lines)
    assert next(read) == b"never read"
