"""What `downspout check` says of a topology, one finding at a time.

Each package finds what concerns it (``engine/findings.py``, ``spout/findings.py``, ``sink/findings.py`` …);
``downspout.run.topology_check`` asks them all.
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
