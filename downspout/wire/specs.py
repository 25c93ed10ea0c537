"""Specs that see their whole topology: they tell all components on our wire which streams carry chunks.

streamparse makes a topology's specs one by one, and Storm tells a component the names of those who read it, not what
they are. But Python tells each attribute of a class when that class is made (``__set_name__``), and then the topology
is there. So it works with stock streamparse, on the machine that submits. One spec of ours in a topology is enough.
"""

from __future__ import annotations

import json
from typing import Any

from streamparse.dsl.bolt import ShellBoltSpec
from streamparse.dsl.spout import ShellSpoutSpec

from downspout.wire.component import Wired
from downspout.wire.streams import CHUNKS, readable

__all__ = ["BoltSpec", "SpoutSpec"]


class SpoutSpec(ShellSpoutSpec):  # type: ignore[misc]
    """A spout in a topology."""

    def __set_name__(self, owner: Any, name: str) -> None:
        tell(owner)


class BoltSpec(ShellBoltSpec):  # type: ignore[misc]
    """A bolt in a topology."""

    def __set_name__(self, owner: Any, name: str) -> None:
        tell(owner)


def tell(topology: Any) -> None:
    """Write into the configuration of each component on our wire, as Storm gets it, which streams carry chunks."""
    specs = [spec for spec in getattr(topology, "specs", ()) if _is_on_wire(spec)]
    found = readable(getattr(topology, "specs", ()), (spec.name for spec in specs))
    for spec in specs:
        spec.common.json_conf = json.dumps({**json.loads(spec.common.json_conf or "{}"), CHUNKS: found})


def _is_on_wire(spec: Any) -> bool:
    return isinstance(spec.component_cls, type) and issubclass(spec.component_cls, Wired)
