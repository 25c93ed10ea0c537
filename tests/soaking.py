"""What sweeps is sampled in ``make test`` and whole in ``make soak-tests``, by DOWNSPOUT_SOAK=1."""

from __future__ import annotations

import os

SOAK = bool(os.environ.get("DOWNSPOUT_SOAK"))
"""Whether this run is whole. Asked when a module is imported: tests themselves see no DOWNSPOUT_ in the environment."""


def examples(whole: int) -> int:
    """Return how many examples a property is tried with: in ``make test`` a quarter."""
    return whole if SOAK else whole // 4
