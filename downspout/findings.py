"""The findings of `downspout check`.

Each package checks its own part (``engine/findings.py``, ``spout/findings.py``, ``sink/findings.py`` …);
``downspout.run.topology_check`` runs all checks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A mistake (``is_error``) or a warning."""

    is_error: bool
    where: str
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{'error' if self.is_error else 'warning'}: {self.where}: {self.what}. Try: {self.cure}"
