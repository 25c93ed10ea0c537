from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from typing import NoReturn

import pytest
from pystorm.component import StormHandler


@pytest.fixture(autouse=True)
def _no_component_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A component's end is a SystemExit: beside other threads pystorm would end the process, which is pytest's here."""

    def leave(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)


@pytest.fixture(autouse=True)
def _only_the_test_is_logged_to_storm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what threads of earlier tests log out of a component's output: pystorm's handler is the root logger's.

    A client of kafka-python that other tests share tells of errors in a thread of its own, whenever it meets with one.
    """
    older = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    emit = StormHandler.emit

    def emit_own(handler: StormHandler, record: logging.LogRecord) -> None:
        if record.thread not in older:
            emit(handler, record)

    monkeypatch.setattr(StormHandler, "emit", emit_own)
    before = list(logging.root.handlers)
    yield
    for handler in logging.root.handlers[:]:
        if isinstance(handler, StormHandler) and handler not in before:
            logging.root.removeHandler(handler)
