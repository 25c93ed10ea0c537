"""Do the parts of *our* node answer? Another one may own a port that was free a moment ago."""

from __future__ import annotations

import socket
from pathlib import Path

from downspout.errors import StormError
from downspout.storm import nimbus
from downspout.storm.node_files import HOST, Ports


class PortTaken(Exception):
    """Another process took one of the ports before a daemon did."""


def zookeeper_answers(ports: Ports, directory: Path) -> bool:
    """Return whether our ZooKeeper serves, by the directory that it names."""
    try:
        with socket.create_connection((HOST, ports.zookeeper), timeout=2.0) as connection:
            connection.sendall(b"conf")
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return False
    if b"dataDir=" not in answer:  # it listens and does not serve yet
        return False
    if f"dataDir={directory / 'data' / 'zookeeper'}".encode() not in answer:
        raise PortTaken
    return True


def nimbus_answers(ports: Ports, directory: Path, timeout_s: float = 5.0) -> bool:
    """Return whether our nimbus answers, by the directory that its configuration names."""
    try:
        found = nimbus.configuration(HOST, ports.nimbus, timeout_s)
    except StormError:
        return False
    return found.get("storm.local.dir") == str(directory / "data")


def trouble(ports: Ports | None, directory: Path, timeout_s: float) -> str:
    """Return which part of a started node does not do its work, in words; empty: those that can be asked do."""
    if ports is None:
        return "node.json is missing"
    try:
        if not zookeeper_answers(ports, directory):
            return "ZooKeeper does not answer"
    except PortTaken:
        return "another process has ZooKeeper's port"
    if not nimbus_answers(ports, directory, timeout_s):
        return "nimbus does not answer"
    knows = nimbus.knows_leader(HOST, ports.nimbus, timeout_s)
    return "" if knows else "nimbus knows of no leader" if knows is False else "nimbus cannot say who leads"


def is_complete(ports: Ports) -> bool:
    """Return whether nimbus leads and the supervisor has reported to it."""
    try:
        summary = nimbus.summary(HOST, ports.nimbus)
    except StormError:
        return False
    return bool(summary.supervisors) and any(each.isLeader for each in summary.nimbuses)
