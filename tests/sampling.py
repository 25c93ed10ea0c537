"""What ``make test`` runs of a sweep, and ``make test-all`` whole.

A sweep repeats one promise at each step, seed or parameter. ``make test`` takes a part of it. Which part goes by the
hash of the commit, so two runs of one commit run the same tests, and over the commits each part has its turn. The run's
first lines name the hash; ``SAMPLE=that-hash make test`` takes the same part again.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")

WHOLE = bool(os.environ.get("TEST_ALL"))
"""Whether this run takes sweeps whole. Asked at import: tests themselves see no DOWNSPOUT_ in the environment."""


@cache
def sample_name() -> str:
    """Return what decides the sample: SAMPLE, else the hash of the commit, else "none"."""
    if given := os.environ.get("SAMPLE"):
        return given
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"


def examples(whole: int) -> int:
    """Return how many examples a property is tried with: in ``make test`` a quarter."""
    return whole if WHOLE else whole // 4


def chosen(name: str, one_of: int) -> bool:
    """Return whether the sample has a case: each has it in one of so many commits; in ``make test-all`` always.

    >>> all(chosen(str(case), 1) for case in range(100))
    True
    """
    return WHOLE or crc32(f"{sample_name()} {name}".encode()) % one_of == 0


def sample(cases: Sequence[T], one_of: int, name: str) -> list[T]:
    """Return every ``one_of``-th case, the first by the commit and the sweep's name, and one at least; or all.

    >>> len(sample(range(90), 9, "doctest")) in (10, 90)
    True
    """
    if WHOLE or not cases:
        return list(cases)
    first = crc32(f"{sample_name()} {name}".encode()) % min(one_of, len(cases))
    return list(cases[first::one_of])
