"""How a spout of ours emits into Storm's pipe."""

from __future__ import annotations

from typing import Any

import pytest

from downspout.wire import WireError
from downspout.wire.tuple_io import Outlet


@pytest.mark.parametrize("ackers", [0, None, 2])
def test_without_ackers_what_was_emitted_is_told_as_acked_once(ackers: int | None) -> None:
    """Ids are told once each, and only where Storm acks nothing; a record that cannot travel is not among them."""
    emitted, refused = [], []

    def emit(values: list[Any], tup_id: str | None, stream: str | None) -> None:
        if values == ["bad"]:
            raise WireError("bad")
        emitted.append(tup_id)

    outlet = Outlet(emit, lambda tup_id, error: refused.append(tup_id), {"topology.acker.executors": ackers})
    for tup_id, value in [("a", "x"), ("b", "bad"), ("c", "y"), (None, "z")]:
        outlet.emit([value], tup_id=tup_id)
    acks = ackers == 0
    assert outlet.take_acked() == (["a", "c"] if acks else [])
    assert outlet.take_acked() == []
    outlet.emit(["x"], tup_id="d")
    assert outlet.take_acked() == (["d"] if acks else [])
    assert (emitted, refused) == ([None] * 4 if acks else ["a", "c", None, "d"], ["b"])
