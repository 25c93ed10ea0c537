from collections.abc import Sequence
from typing import IO, Any, ClassVar

from .component import ComponentSpec

class TopologyType(type): ...

class Topology(metaclass=TopologyType):
    config: ClassVar[dict[str, Any] | None]
    specs: ClassVar[Sequence[ComponentSpec]]
    thrift_topology: ClassVar[Any]
    thrift_bolts: ClassVar[dict[str, Any]]
    thrift_spouts: ClassVar[dict[str, Any]]

    @classmethod
    def write(cls, stream: IO[bytes] | str) -> None: ...
    @classmethod
    def read(cls, stream: IO[bytes] | str) -> Any: ...
    @classmethod
    def to_flux_dict(cls, name: str) -> dict[str, Any]: ...
