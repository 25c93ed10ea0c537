from __future__ import annotations

import pytest


@pytest.mark.xdist_group("a-group")
def test_a_group_stays_together(request: pytest.FixtureRequest) -> None:
    """xdist knows the group of a test, which it reads from the test's id; else three Storms may run at once."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@a-group")
