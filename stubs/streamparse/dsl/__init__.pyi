from .stream import Grouping as Grouping
from .stream import Stream as Stream
from .topology import Topology as Topology
