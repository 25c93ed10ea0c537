"""The state of a node, for ``downspout storm status`` and for callers that need a running one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from downspout.storm import launch
from downspout.storm.node_files import HOST, Daemons, Ports


@dataclass(frozen=True)
class Status:
    """What is known of the node of a directory."""

    # ``running``; ``silent`` (its processes live, and one that can be asked does not answer, or not as it should);
    # ``broken`` (some of them have ended); ``busy`` (it is being started or stopped); ``stopped``
    state: str
    directory: Path  # where its files are
    ports: Ports | None  # where it listens, or will; None where it never ran
    daemons: Daemons | None  # the processes; None where there are none
    trouble: str = ""  # of a silent node, in words

    @property
    def version(self) -> str:
        """The version of the Storm that runs; empty where none does."""
        return self.daemons.version if self.daemons else ""

    @property
    def alive(self) -> dict[str, int]:
        """The process ids of the daemons that run, by name."""
        return {name: self.daemons.processes[name].pid for name in self.daemons.alive} if self.daemons else {}

    @property
    def gone(self) -> list[str]:
        """The names of the daemons that have ended while others run."""
        return [name for name in launch.MAINS if name not in self.daemons.alive] if self.daemons else []

    @property
    def condition(self) -> str:
        """The state in words; of a broken node also what is gone, of a silent one what is the matter."""
        if self.state == "broken":
            return f"broken: {' and '.join(self.gone)} ended"
        return f"{self.state}: {self.trouble}" if self.trouble else self.state

    @property
    def cure(self) -> str:
        """What to do where it does not run."""
        if self.state == "silent":
            return "wait; if that does not help, `downspout storm stop`, then `downspout storm start`"
        if self.state == "broken":
            return "`downspout storm start`, which replaces it; topologies must be submitted again"
        return "wait" if self.state == "busy" else "`downspout storm start`"

    @property
    def nimbus(self) -> str:
        """The address of nimbus as ``host:port``; empty where there is none yet."""
        return f"{HOST}:{self.ports.nimbus}" if self.ports else ""
