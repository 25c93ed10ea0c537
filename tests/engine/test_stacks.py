"""Tracebacks made cheaply: they read as Python's own."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from downspout.engine import Stacks, runtime
from downspout.errors import RecordError


def plain() -> None:
    int("poison")


def caused() -> None:
    try:
        plain()
    except ValueError as error:
        raise RuntimeError("no number") from error


def meanwhile() -> None:
    try:
        caused()
    except RuntimeError:
        raise KeyError("a") from None
    finally:
        dict[str, int]()["b"]


def hidden() -> None:
    try:
        plain()
    except ValueError:
        raise RuntimeError("no number") from None


def noted() -> None:
    error = ValueError("two\nlines")
    error.add_note("a note")
    raise error


def grouped() -> None:
    try:
        plain()
    except ValueError as error:
        raise ExceptionGroup("many", [error, KeyError("b")]) from error


def circular() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def deep(depth: int = 150) -> None:
    return deep(depth - 1) if depth else plain()


def syntax() -> None:
    compile("1 +", "given", "exec")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("and no word about it")


def unspeakable() -> None:
    raise Unspeakable


def misspelt() -> None:
    [].apend(1)


def foreign() -> None:
    raise RecordError("said in two lines\nand a cure", cure="none")


def wordless() -> None:
    raise ValueError


def thrown(raises: Callable[[], object]) -> BaseException:
    try:
        raises()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


RAISERS = [plain, caused, meanwhile, hidden, noted, grouped, circular, deep, syntax, unspeakable, misspelt, foreign]


@pytest.mark.parametrize("raises", [*RAISERS, wordless])
def test_the_text_is_pythons_own(raises: Callable[[], None]) -> None:
    """The first time and the second, the text is what the traceback module makes of that error."""
    made = Stacks()
    for _ in range(2):
        error = thrown(raises)
        assert made.text(error) == "".join(traceback.format_exception(error))


def test_one_way_through_the_code_with_two_messages() -> None:
    """What is remembered are the frames: each text ends in its own error's message."""
    made = Stacks()
    texts = [made.text(thrown(partial(int, f"poison {n}"))) for n in range(2)]
    assert [text.splitlines()[-1].rpartition(": ")[2] for text in texts] == ["'poison 0'", "'poison 1'"]


def test_two_lines_of_one_function_are_two_ways() -> None:
    """Errors of one function that were raised in different places show different lines."""

    def raises(number: int) -> None:
        if number:
            raise ValueError("x")
        raise ValueError("x")

    made = Stacks()
    errors = [thrown(lambda n=n: raises(n)) for n in range(2)]
    assert [made.text(error) for error in errors] == ["".join(traceback.format_exception(error)) for error in errors]
    assert made.text(errors[0]) != made.text(errors[1])


def test_an_error_without_a_traceback_is_its_message() -> None:
    assert Stacks().text(ValueError("x")) == "ValueError: x\n"


def test_formatting_happens_once_per_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source lines are looked up for the first error of a kind only."""
    calls = []
    format_tb = traceback.format_tb
    monkeypatch.setattr(traceback, "format_tb", lambda trace: calls.append(1) or format_tb(trace))
    made = Stacks()
    for _ in range(100):
        made.text(thrown(plain))
    assert len(calls) == 1


def test_no_local_variable_outlives_its_error() -> None:
    """After a thousand failures nothing that the failing code held is alive."""

    class Held:
        pass

    alive: list[weakref.ref[Held]] = []

    def raises() -> None:
        held = Held()
        alive.append(weakref.ref(held))
        plain()

    made = Stacks()
    for _ in range(1000):
        made.text(thrown(raises))
    gc.collect()
    assert sum(ref() is not None for ref in alive) == 0


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that is made anew for each record, or endless recursion, does not fill the memory."""
    monkeypatch.setattr(runtime, "PATHS_MAX", 10)
    made = Stacks()
    for number in range(100):
        scope: dict[str, Callable[[], None]] = {}
        exec(f"def raises():\n    raise ValueError({number})", scope)
        made.text(thrown(scope["raises"]))
        assert len(made.lines) <= 10
    made = Stacks()
    made.text(thrown(deep))
    assert not made.lines
