from collections.abc import Sequence
from typing import Any

from ..component import Component
from .component import JavaComponentSpec, ShellComponentSpec
from .stream import Stream

class ShellSpoutSpec(ShellComponentSpec):
    def __init__(
        self,
        component_cls: type[Component],
        name: str | None = None,
        command: str | None = None,
        script: str | None = None,
        par: int | dict[str, int] | None = 1,
        config: dict[str, Any] | None = None,
        outputs: Sequence[str | Stream] | None = None,
    ) -> None: ...

class JavaSpoutSpec(JavaComponentSpec):
    def __init__(
        self,
        component_cls: type[Component],
        name: str | None = None,
        serialized_java: bytes | None = None,
        full_class_name: str | None = None,
        args_list: list[Any] | None = None,
        par: int | dict[str, int] | None = 1,
        config: dict[str, Any] | None = None,
        outputs: Sequence[str | Stream] | None = None,
    ) -> None: ...
