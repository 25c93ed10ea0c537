from typing import Any

class GlobalStreamId:
    componentId: Any  # the component's name; its spec until a topology gives it one
    streamId: str

    def __init__(self, componentId: Any = None, streamId: str | None = None) -> None: ...

class StreamInfo:
    output_fields: list[str]
    direct: bool

    def __init__(self, output_fields: list[str] | None = None, direct: bool | None = None) -> None: ...

def __getattr__(name: str) -> Any: ...
