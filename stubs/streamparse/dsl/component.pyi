from collections.abc import Sequence
from typing import Any, TypeAlias

from ..component import Component
from ..thrift import GlobalStreamId, StreamInfo
from .stream import Stream, _Grouping

# A dict of specs and streams is invariant in its keys, so that one of spouts alone would not be one of both.
Inputs: TypeAlias = ComponentSpec | Sequence[ComponentSpec | GlobalStreamId] | dict[Any, _Grouping] | None

class ComponentSpec:
    component_cls: type[Component]
    name: str | None
    par: int | dict[str, int]
    config: str
    outputs: dict[str, StreamInfo]
    inputs: dict[GlobalStreamId, _Grouping]
    common: Any
    component_object: Any

    def __init__(
        self,
        component_cls: type[Component],
        name: str | None = None,
        inputs: Inputs = None,
        par: int | dict[str, int] | None = 1,
        config: dict[str, Any] | None = None,
        outputs: Sequence[str | Stream] | None = None,
    ) -> None: ...
    def __getitem__(self, stream: str) -> GlobalStreamId: ...

class JavaComponentSpec(ComponentSpec):
    def __init__(
        self,
        component_cls: type[Component],
        name: str | None = None,
        serialized_java: bytes | None = None,
        full_class_name: str | None = None,
        args_list: list[Any] | None = None,
        inputs: Inputs = None,
        par: int | dict[str, int] | None = None,
        config: dict[str, Any] | None = None,
        outputs: Sequence[str | Stream] | None = None,
    ) -> None: ...

class ShellComponentSpec(ComponentSpec):
    def __init__(
        self,
        component_cls: type[Component],
        name: str | None = None,
        command: str | None = None,
        script: str | None = None,
        inputs: Inputs = None,
        par: int | dict[str, int] | None = 1,
        config: dict[str, Any] | None = None,
        outputs: Sequence[str | Stream] | None = None,
    ) -> None: ...
