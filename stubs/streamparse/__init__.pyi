from pystorm.component import StormHandler as StormHandler
from pystorm.component import Tuple as Tuple

from . import bolt as bolt
from . import component as component
from . import dsl as dsl
from . import spout as spout
from .bolt import BatchingBolt as BatchingBolt
from .bolt import Bolt as Bolt
from .bolt import JavaBolt as JavaBolt
from .bolt import ShellBolt as ShellBolt
from .bolt import TicklessBatchingBolt as TicklessBatchingBolt
from .dsl import Grouping as Grouping
from .dsl import Stream as Stream
from .dsl import Topology as Topology
from .spout import JavaSpout as JavaSpout
from .spout import ReliableSpout as ReliableSpout
from .spout import ShellSpout as ShellSpout
from .spout import Spout as Spout

VERSION: tuple[int | str, ...]
__version__: str
