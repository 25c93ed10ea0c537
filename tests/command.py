"""``downspout`` as its users start it: a process of its own, with this Python and this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
BASE_PYTHON = str(sys._base_executable)
"""Not the one of a virtual environment, which would bring its packages."""
DOWNSPOUT = (PYTHON, "-m", "downspout")
PYTHON_CODE = (PYTHON, "-c")
"""What runs code in a process of its own."""
ENDS_S_MAX = 240.0
"""A command that takes longer hangs: less than the time that pytest gives a test on a real server."""


def environment(changed: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this process's environment, with this checkout on Python's path; None takes a variable out."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = {**os.environ, "PYTHONPATH": path, **(changed or {})}
    return {name: value for name, value in found.items() if value is not None}


def cli(
    *words: object,
    program: tuple[str, ...] = DOWNSPOUT,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    given: str | None = None,
    code: int | None = 0,
    ends_s: float = ENDS_S_MAX,
) -> subprocess.CompletedProcess[str]:
    """Run ``downspout WORDS`` to its end. ``code`` is the exit code that it must have (None: any).

    ``program`` is what runs instead of ``downspout``, such as :data:`PYTHON_CODE`; ``given`` is its standard input.

    >>> cli("--version").stdout.startswith("downspout")
    True
    """
    done = subprocess.run(
        [*program, *map(str, words)],
        cwd=cwd or ROOT,
        env=environment(env),
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=ends_s,
        check=False,
    )
    assert code is None or done.returncode == code, (
        f"exit code {done.returncode}, not {code}: {done.args}\n{done.stdout}\n{done.stderr}"
    )
    return done
