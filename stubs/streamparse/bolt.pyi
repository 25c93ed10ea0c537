from collections.abc import Sequence
from typing import Any

import pystorm.bolt

from .component import Component
from .dsl.bolt import JavaBoltSpec, ShellBoltSpec
from .dsl.component import Inputs
from .dsl.stream import Stream

class JavaBolt(Component):
    @classmethod
    def spec(
        cls,
        name: str | None = None,
        serialized_java: bytes | None = None,
        full_class_name: str | None = None,
        args_list: list[Any] | None = None,
        inputs: Inputs = None,
        par: int | dict[str, int] = 1,
        config: dict[str, Any] | None = None,
        outputs: Sequence[str | Stream] | None = None,
    ) -> JavaBoltSpec: ...

class ShellBolt(Component):
    @classmethod
    def spec(
        cls,
        name: str | None = None,
        command: str | None = None,
        script: str | None = None,
        inputs: Inputs = None,
        par: int | dict[str, int] | None = None,
        config: dict[str, Any] | None = None,
        outputs: Sequence[str | Stream] | None = None,
    ) -> ShellBoltSpec: ...

class Bolt(pystorm.bolt.Bolt, Component):  # at run time a ShellBolt, whose spec takes more
    @classmethod
    def spec(
        cls,
        name: str | None = None,
        inputs: Inputs = None,
        par: int | dict[str, int] | None = None,
        config: dict[str, Any] | None = None,
    ) -> ShellBoltSpec: ...

class BatchingBolt(pystorm.bolt.BatchingBolt, Bolt): ...
class TicklessBatchingBolt(pystorm.bolt.TicklessBatchingBolt, BatchingBolt): ...
