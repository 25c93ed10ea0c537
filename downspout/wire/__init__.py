"""Storm's pipe, from the side of a Python component: how values travel, how bytes are read and written, how it ends.

A component gets it by inheriting from :class:`downspout.wire.component.Wired`, beside pystorm's class. Storm needs
nothing: its own JSON serializer is at the other end.
"""

from downspout.wire.component import Wired
from downspout.wire.serializer import WireError
from downspout.wire.tracking import Outlet

__all__ = ["Outlet", "WireError", "Wired"]
