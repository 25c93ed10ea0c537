"""Executes faults one after the other: readiness, action, whether it landed, and recovery."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kafka.errors import KafkaError

from downspout.broker import EmbeddedCluster, EmbeddedKafka
from downspout.errors import BrokerError
from tools.chaos.members import Process
from tools.chaos.plan import BROKER_FAULTS, MEMBERS, Fault
from tools.chaos.stage import GROUP, PARTITIONS, TOPIC, Stage

OUT_MIN = 1_000
"""A fault has landed only if this many records were in flight."""
READY_S_MAX = 240.0
STARTS_MAX = 3
RECOVERY_S_MAX = 300.0
GUEST = MEMBERS + 1


@dataclass
class Outcome:
    """The outcome of a fault.

    Attributes:
        fault: which.
        out: records that were in flight: of the process that it was about, or of all.
        resolved: records that were resolved since the fault before.
        landed: whether both were enough, and it could be done.
        again_max: records that might be emitted again for it.
        recovery_s: until each partition had resolved a record beyond all that were emitted by then; None: the next
            fault came before that.
    """

    fault: Fault
    out: int = 0
    resolved: int = 0
    landed: bool = False
    again_max: int = 0
    recovery_s: float | None = None


class Runner:
    """Does a plan on a stage."""

    def __init__(self, stage: Stage, told: Callable[[str], None]) -> None:
        self._stage = stage
        self._told = told
        self._resolved = 0
        self.outcomes: list[Outcome] = []

    def run(self, plan: list[Fault]) -> list[Outcome]:
        """Execute the plan."""
        stage = self._stage
        moves = lambda: all(stage.records.last_progress_s())  # noqa: E731
        stage.wait_for(lambda: moves() or len(stage.members.fallen) > MEMBERS, READY_S_MAX)
        if not moves():
            raise RuntimeError(f"nothing moves at the start; look at {stage.folder}/logs: {stage.members.fallen[:1]}")
        for number, fault in enumerate(plan, 1):
            outcome = self._one(fault, eager=number < len(plan) and plan[number].eager)
            self.outcomes.append(outcome)
            self._told(self._line(number, len(plan), outcome))
        return self.outcomes

    def _line(self, number: int, count: int, outcome: Outcome) -> str:
        fault = outcome.fault
        what = "landed" if outcome.landed else "did not land"
        after = "" if outcome.recovery_s is None else f", got over after {outcome.recovery_s:.1f} s"
        return f"{number}/{count} {fault.kind} {fault.victim}: {what}, {outcome.out:,} in flight{after}"

    def _one(self, fault: Fault, *, eager: bool) -> Outcome:
        stage = self._stage
        outcome = Outcome(fault)
        if not stage.wait_for(lambda: self._may_come(fault), READY_S_MAX):
            return outcome
        stage.wait_for(lambda: False, fault.pause_s)
        if not self._wait_for_moment(fault):
            stage.records.check_room()
            return outcome
        outcome.resolved = stage.records.resolved() - self._resolved
        out_to = stage.records.out_to()
        began = time.monotonic()
        stage.disturb()
        try:
            done = DEEDS[fault.kind](self, fault, outcome)
        except (BrokerError, KafkaError):  # no broker answered which one leads, or what is committed
            return outcome
        self._resolved = stage.records.resolved()
        outcome.landed = done and outcome.out >= OUT_MIN and outcome.resolved > 0
        over = lambda: self._is_over(out_to)  # noqa: E731
        if not eager and stage.wait_for(over, RECOVERY_S_MAX):
            outcome.recovery_s = time.monotonic() - began
        return outcome

    def _is_over(self, out_to: list[int]) -> bool:
        done_to = self._stage.records.done_to()
        return all(done > out for done, out in zip(done_to, out_to, strict=True)) and not self._stage.brokers_away

    def _wait_for_moment(self, fault: Fault) -> bool:
        """Wait, in small steps, until enough is in flight; return whether it is."""
        end = time.monotonic() + READY_S_MAX
        while time.monotonic() < end:
            if self._may_come(fault) and self._out(fault) >= OUT_MIN + 100 and self._holds_it(fault):
                return True
            self._stage.turn()
            time.sleep(0.005)
        return False

    def _holds_it(self, fault: Fault) -> bool:
        """Freeze whom the fault hits at once; return whether enough is in flight still, and let it go on if not.

        One that runs on could resolve all of it between our look and the fault.
        """
        if fault.kind not in ("kill", "stop"):
            return True
        member = self._stage.members.alive[fault.victim]
        member.stop()
        if self._out(fault) >= OUT_MIN:
            return True
        member.go_on()
        return False

    def _may_come(self, fault: Fault) -> bool:
        """Return whether everything stands ready: the victim runs, and something was resolved since the last fault."""
        stage = self._stage
        if stage.records.resolved() <= self._resolved:
            return False
        alive = [number for number, member in stage.members.alive.items() if not member.is_stopped]
        if fault.kind in BROKER_FAULTS:
            return not stage.brokers_away and len(alive) >= MEMBERS
        if fault.kind == "join":
            return GUEST not in stage.members.alive
        return fault.victim in alive and len(alive) >= 2 and not stage.brokers_away

    def _out(self, fault: Fault) -> int:
        members, records = self._stage.members.alive, self._stage.records
        if fault.kind in ("kill", "stop", "leave"):
            return records.out(members[fault.victim].pid)
        return sum(records.out(member.pid) for member in members.values())

    # --- the deeds ---

    def _about(self, member: Process, outcome: Outcome) -> None:
        """Note what a process had in flight, and what may come again for it."""
        outcome.out = self._stage.records.out(member.pid)
        outcome.again_max = self._stage.may_come_again(self._stage.records.mine(member.pid))

    def _about_all(self, outcome: Outcome) -> None:
        outcome.out = self._out(outcome.fault)
        outcome.again_max = self._stage.may_come_again(list(range(PARTITIONS)))

    def _kill(self, fault: Fault, outcome: Outcome) -> bool:
        member = self._stage.members.alive[fault.victim]
        member.kill()
        self._stage.members.reap()
        self._start_again_later(fault)
        self._about(member, outcome)
        return True

    def _start_again_later(self, fault: Fault) -> None:
        stage = self._stage

        def start() -> None:
            stage.members.start(fault.victim)
            stage.disturb()

        stage.later(fault.down_s, start)

    def _stop(self, fault: Fault, outcome: Outcome) -> bool:
        stage = self._stage
        member = stage.members.alive[fault.victim]
        member.stop()
        self._about(member, outcome)

        def go_on() -> None:
            member.go_on()
            stage.disturb()

        stage.later(fault.down_s, go_on)
        return True

    def _leave(self, fault: Fault, outcome: Outcome) -> bool:
        member = self._stage.members.alive[fault.victim]
        self._about(member, outcome)
        member.ask_to_end()
        ended = self._stage.wait_for(lambda: member.exit_code is not None, READY_S_MAX)
        self._stage.members.reap()
        self._stage.disturb()
        self._start_again_later(fault)
        return ended

    def _join(self, fault: Fault, outcome: Outcome) -> bool:
        stage = self._stage
        self._about_all(outcome)
        guest = stage.members.start(GUEST)
        has_joined = stage.wait_for(lambda: bool(stage.records.mine(guest.pid)), READY_S_MAX)
        stage.disturb()

        def leave() -> None:
            guest.ask_to_end()
            stage.disturb()

        stage.later(fault.down_s, leave)
        return has_joined

    def _restart(self, fault: Fault, outcome: Outcome) -> bool:
        kafka = self._stage.kafka
        assert isinstance(kafka, EmbeddedKafka)
        self._about_all(outcome)
        self._away(1)
        if fault.hard:
            kafka.kill()
        else:
            kafka.stop()
        self._stage.wait_for(lambda: False, fault.down_s)
        self._bring_back()
        return True

    def _kill_leader(self, fault: Fault, outcome: Outcome) -> bool:
        return self._kill_node(lambda kafka: kafka.leader(TOPIC, fault.victim), fault, outcome)

    def _kill_coordinator(self, fault: Fault, outcome: Outcome) -> bool:
        return self._kill_node(lambda kafka: kafka.coordinator(GROUP), fault, outcome)

    def _kill_node(self, which: Callable[[EmbeddedCluster], int | None], fault: Fault, outcome: Outcome) -> bool:
        kafka = self._stage.kafka
        assert isinstance(kafka, EmbeddedCluster)
        if (number := which(kafka)) is None:
            return False
        if not self._wait_for_moment(fault):  # to ask took a while
            return False
        self._about_all(outcome)
        self._away(1)
        kafka.node(number).kill()
        self._stage.wait_for(lambda: False, 4.0 + fault.down_s)  # others have taken over by then
        self._bring_back()
        return True

    def _bring_back(self) -> None:
        """Start what does not run. On a busy machine a broker may be too slow; without it nothing could go on."""
        for attempt in range(STARTS_MAX):
            try:
                self._stage.kafka.start()
                break
            except BrokerError as error:
                self._told(f"start {attempt + 1}: {error}")
        else:
            raise RuntimeError("the brokers do not start again")
        self._away(-1)

    def _away(self, brokers: int) -> None:
        self._stage.brokers_away += brokers
        self._stage.disturb()


DEEDS: dict[str, Callable[[Runner, Fault, Outcome], bool]] = {
    "kill": Runner._kill,
    "stop": Runner._stop,
    "leave": Runner._leave,
    "join": Runner._join,
    "restart": Runner._restart,
    "leader": Runner._kill_leader,
    "coordinator": Runner._kill_coordinator,
}
