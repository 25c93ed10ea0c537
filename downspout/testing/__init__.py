"""For tests of topologies, the users' and our own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from downspout.testing.clock import VirtualClock as VirtualClock
    from downspout.testing.fake_kafka import FakeKafka as FakeKafka

_HOMES = {
    "FakeKafka": "downspout.testing.fake_kafka",
    "VirtualClock": "downspout.testing.clock",
}
"""Public name → module. Imported on first use, so that pytest, which loads our plugin everywhere, stays fast."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
