from __future__ import annotations

import os
from typing import NoReturn

import pytest


@pytest.fixture(autouse=True)
def _no_component_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A component's end is a SystemExit: beside other threads pystorm would end the process, which is pytest's here."""

    def leave(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
