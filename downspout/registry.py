"""Who implements what a lower package only names: filled by ``downspout/__init__.py``, read where it is needed.

This is part of ``import downspout``, which is done before the program takes care of Ctrl-C: it imports nothing at all.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not typing's, which takes time
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

beside: list[Callable[[Any, Any], Any]] = []
"""What opens, for a graph and its settings, what goes on beside a run (``downspout.run.call``)."""
schemes: dict[str, Callable[[], Any]] = {}
"""What says where the cluster is that a name in ``kafka.bootstrap`` stands for (``downspout.kafka.clusters``)."""
stores: dict[str, Callable[[str, Any], Any]] = {}
"""What opens the offset stores whose URL has a scheme (``downspout.spout.ports``)."""
notes: list[Callable[[Path, str], Any]] = []
"""What opens the notes of commits in a directory (``downspout.spout.ports``)."""
batch_stores: dict[str, Callable[[str, Any], Any]] = {}
"""What opens the stores of batches' metadata whose URL has a scheme (``downspout.batches.stores``)."""
state_stores: dict[str, Callable[[str, Any], Any]] = {}
"""Likewise the stores of keyed state."""
