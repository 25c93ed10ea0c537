from collections.abc import Sequence
from typing import Any, ClassVar

import pystorm.component
from pystorm.component import StormHandler as StormHandler

from .dsl.stream import Stream

class Component(pystorm.component.Component):
    outputs: ClassVar[Sequence[str | Stream] | None]
    par: ClassVar[int | dict[str, int]]
    config: ClassVar[dict[str, Any] | None]
