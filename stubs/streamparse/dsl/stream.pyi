from collections.abc import Sequence
from typing import Any, ClassVar

from ..thrift import StreamInfo

class Stream(StreamInfo):
    fields: list[str]
    name: str

    def __init__(self, fields: Sequence[str] | None = None, name: str = "default", direct: bool = False) -> None: ...

class _Grouping:
    fields: list[str] | None

class Grouping:
    SHUFFLE: ClassVar[_Grouping]
    GLOBAL: ClassVar[_Grouping]
    DIRECT: ClassVar[_Grouping]
    ALL: ClassVar[_Grouping]
    NONE: ClassVar[_Grouping]
    LOCAL_OR_SHUFFLE: ClassVar[_Grouping]

    @classmethod
    def fields(cls, *fields: str | list[str]) -> _Grouping: ...
    @classmethod
    def custom_object(cls, java_class_name: str, arg_list: list[Any]) -> _Grouping: ...
    @classmethod
    def custom_serialized(cls, java_serialized: bytes) -> _Grouping: ...
