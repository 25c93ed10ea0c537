"""Which emitter a spout has: by its guarantee, and by whether it emits records or chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from downspout.clock import Clock
from downspout.spout.crash_isolation import CrashIsolation
from downspout.spout.emit.record_emitter import EmitMany, RecordEmitter
from downspout.spout.emit.untracked_emitter import UntrackedEmitter
from downspout.spout.group.group_session import SpoutServices
from downspout.spout.partition import Partition


def emitter_of(
    services: SpoutServices,
    component: str,
    clock: Clock,
    write_down: Callable[[Partition], bool],
    other_isolations: Callable[[], Iterable[CrashIsolation]],
    emit_many: EmitMany | None,
) -> RecordEmitter | UntrackedEmitter:
    """Return the emitter; arguments as for :class:`~downspout.spout.emit.record_emitter.RecordEmitter`."""
    if not services.setup.guarantee.tracks:
        return UntrackedEmitter(services, component, clock)
    kind = RecordEmitter
    if services.setup.settings["emit"] == "chunk":
        from downspout.spout.emit.chunk_emitter import ChunkEmitter as kind
    return kind(services, component, clock, write_down, other_isolations, emit_many)
