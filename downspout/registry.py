"""Implementations for ports of lower packages, registered by ``downspout/__init__.py``.

This module is part of ``import downspout``, which precedes the handler for Ctrl-C, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not typing's, which takes time
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

beside: list[Callable[[Any, Any], Any]] = []
"""Start exporters beside a run, for a graph and its settings (``downspout.run.call``)."""
schemes: dict[str, Callable[[], Any]] = {}
"""Resolve names in ``kafka.bootstrap``, such as ``embedded``, to brokers (``downspout.kafka.clusters``)."""
stores: dict[str, Callable[[str, Any], Any]] = {}
"""Open offset stores, by the scheme of their URL (``downspout.spout.ports``)."""
notes: list[Callable[[Path, str], Any]] = []
"""Open the notes of commits in a directory (``downspout.spout.ports``)."""
batch_stores: dict[str, Callable[[str, Any], Any]] = {}
"""Open stores for metadata of batches, by the scheme of their URL (``downspout.batches.stores``)."""
state_stores: dict[str, Callable[[str, Any], Any]] = {}
"""Open stores for keyed state, likewise."""
