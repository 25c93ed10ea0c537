from collections.abc import Sequence
from typing import Any

import pystorm.spout

from .component import Component
from .dsl.spout import JavaSpoutSpec, ShellSpoutSpec
from .dsl.stream import Stream

class JavaSpout(Component):
    @classmethod
    def spec(
        cls,
        name: str | None = None,
        serialized_java: bytes | None = None,
        full_class_name: str | None = None,
        args_list: list[Any] | None = None,
        par: int | dict[str, int] = 1,
        config: dict[str, Any] | None = None,
        outputs: Sequence[str | Stream] | None = None,
    ) -> JavaSpoutSpec: ...

class ShellSpout(Component):
    @classmethod
    def spec(
        cls,
        name: str | None = None,
        command: str | None = None,
        script: str | None = None,
        par: int | dict[str, int] | None = None,
        config: dict[str, Any] | None = None,
        outputs: Sequence[str | Stream] | None = None,
    ) -> ShellSpoutSpec: ...

class Spout(pystorm.spout.Spout, Component):  # at run time a ShellSpout, whose spec takes more
    @classmethod
    def spec(
        cls,
        name: str | None = None,
        par: int | dict[str, int] | None = None,
        config: dict[str, Any] | None = None,
    ) -> ShellSpoutSpec: ...

class ReliableSpout(pystorm.spout.ReliableSpout, Spout): ...
