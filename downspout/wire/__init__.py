"""Storm's pipe, from the side of a Python component: how values travel, how bytes are read and written, how it ends.

A component gets it by inheriting from :class:`downspout.wire.component.Wired`, beside pystorm's class. Storm needs
nothing: its own JSON serializer is at the other end.
"""

from __future__ import annotations

from downspout.exports import offered
from downspout.wire.component import Wired
from downspout.wire.serializer import WireError
from downspout.wire.tracking import Outlet

__getattr__, _offered = offered(
    __name__,
    {
        "chunks": "is_packed pack unpack",
        "component": "EXIT_S_MAX",
        "flushing": "FLUSH",
        "kryo": "KRYO KRYO_CLASSES",
        "pipe": "Pipe",
        "serializer": "WireSerializer",
        "streams": "CHUNKS",
        "transacting": "TRANSACTIONS",
        "values": "Encoder parse restore slow",
    },
)
__all__ = ["Outlet", "WireError", "Wired", *_offered]
