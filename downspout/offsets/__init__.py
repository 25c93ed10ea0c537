"""Showing, moving and handing over the offsets of consumer groups.

To change how lag is computed: lag.py
To change how a seek target, such as an hour ago, becomes an offset: seek_targets.py
To change when a seek is refused: seeking.py
To change how a move is committed: group_offsets.py
To change what is read from ZooKeeper: zookeeper.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "group_offsets": "Standing commit_for commit_moves plan_moves",
        "lag": "PartitionLag Question collect",
        "seek_targets": "TargetKind Place milliseconds moment read_places to_csv",
        "seeking": "plan_seek",
        "stores.database": "DatabaseError LostError",
        "stores.sql": "open_sql_store",
        "stores.sqlite": "SqliteDatabase",
        "zookeeper": "Conflict Location Nodes Operation SpoutNode location_of open_nodes read_state",
    },
)
