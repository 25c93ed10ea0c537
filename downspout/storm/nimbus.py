"""A client of nimbus, by Thrift, with streamparse's description of the service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from downspout.errors import StormError

TIMEOUT_S = 10.0
PASSING_STATUS = {
    "REBALANCING": "again when `storm list` shows it ACTIVE or INACTIVE, after its message timeout or --wait",
    "KILLED": "submit it again when `storm list` no longer shows it",
}
"""Statuses that pass without action, and what to do meanwhile."""
UNREACHABLE_CURE = "`downspout storm status`, and `downspout storm start` if it does not run"


@contextmanager
def connect(host: str, port: int, timeout_s: float = TIMEOUT_S) -> Iterator[Any]:
    """Yield a client of the nimbus at this address; its errors are raised as StormError."""
    from streamparse import thrift
    from thriftpy2.protocol import TBinaryProtocolFactory
    from thriftpy2.rpc import make_client
    from thriftpy2.thrift import TException
    from thriftpy2.transport import TFramedTransportFactory

    where = f"{host}:{port}"
    try:
        client = make_client(
            thrift.Nimbus,
            host,
            port,
            proto_factory=TBinaryProtocolFactory(),
            trans_factory=TFramedTransportFactory(),
            timeout=int(timeout_s * 1000),
        )
    except (TException, OSError) as error:
        raise StormError(f"No nimbus answers at {where}: {_text(error)}", cure=UNREACHABLE_CURE) from error
    try:
        yield client
    except thrift.NotAliveException as error:
        raise StormError(f"Nimbus {where}: {error.msg}", cure="`sparse list`, which names what runs") from error
    except thrift.InvalidTopologyException as error:
        raise StormError(
            f"Nimbus {where} refuses: {error.msg}", cure="the names and numbers that `downspout storm stats` shows"
        ) from error
    except (TException, OSError, EOFError, UnicodeDecodeError) as error:
        raise StormError(f"Nimbus {where}: {_text(error)}", cure=UNREACHABLE_CURE) from error
    finally:
        client.close()


def _text(error: BaseException) -> str:
    return str(getattr(error, "msg", None) or getattr(error, "message", None) or error)


def configuration(host: str, port: int, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Return the configuration of a nimbus."""
    with connect(host, port, timeout_s) as client:
        return dict(json.loads(client.getNimbusConf()))


def summary(host: str, port: int, timeout_s: float = TIMEOUT_S) -> Any:
    """Return Storm's ClusterSummary: nimbuses, supervisors, topologies."""
    with connect(host, port, timeout_s) as client:
        return client.getClusterInfo()


def topology_named(client: Any, name: str) -> Any:
    """Return Storm's TopologySummary of a topology. Raises StormError: no topology has that name."""
    found = next((each for each in client.getClusterInfo().topologies if each.name == name), None)
    if found is None:
        raise StormError(f"There is no topology {name}", cure="`sparse list`")
    return found


def knows_leader(host: str, port: int, timeout_s: float = TIMEOUT_S) -> bool | None:
    """Return whether a nimbus knows the leader, as clients ask first; None if it does not answer."""
    from thriftpy2.thrift import TApplicationException

    try:
        with connect(host, port, timeout_s) as client:
            client.getLeader()
    except StormError as error:  # without a leader, the answer has no result
        is_empty = getattr(error.__cause__, "type", None) == TApplicationException.MISSING_RESULT
        return False if is_empty and isinstance(error.__cause__, TApplicationException) else None
    return True


@contextmanager
def changing(host: str, port: int, name: str, what: str) -> Iterator[Any]:
    """Yield a client to change a topology; if nimbus refuses because of its status, the error says so."""
    from thriftpy2.thrift import TApplicationException

    with connect(host, port) as client:
        try:
            yield client
        except TApplicationException:  # "Internal error": the topology's status allows no such transition
            status = next((each.status for each in client.getClusterInfo().topologies if each.name == name), "")
            if (cure := PASSING_STATUS.get(status)) is None:
                raise
            raise StormError(f"{name} is {status}; until that ends, Storm does not {what} it", cure=cure) from None


def kill(host: str, port: int, name: str, wait_s: int | None = None) -> None:
    """Kill a topology: deactivate its spouts now and end its workers ``wait_s`` later (default: its message
    timeout)."""
    from streamparse.thrift import KillOptions

    with changing(host, port, name, "kill") as client:
        client.killTopologyWithOpts(name=name, options=KillOptions(wait_secs=wait_s))


def rebalance(
    host: str, port: int, name: str, *, wait_s: int | None, workers: int | None, executors: Mapping[str, int]
) -> None:
    """Rebalance a topology: deactivate its spouts now and restart its workers ``wait_s`` later.

    ``wait_s`` defaults to the topology's message timeout. ``executors`` are threads by component, at most one per task;
    the number of tasks is fixed.
    """
    from streamparse.thrift import RebalanceOptions

    options = RebalanceOptions(wait_secs=wait_s, num_workers=workers, num_executors=dict(executors) or None)
    with changing(host, port, name, "rebalance") as client:
        client.rebalance(name=name, options=options)
