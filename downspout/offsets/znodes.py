"""The few things that are asked of ZooKeeper, behind a port; its implementation uses kazoo.

Each answer is waited for at most :data:`ANSWER_S`: no call of a spout may take longer than 5 s. Errors of ZooKeeper
become an :class:`~downspout.spout.ports.OffsetStoreError`, which says whether the same may work in a moment.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from downspout.errors import ConfigError, MissingExtraError
from downspout.spout.ports import OffsetStoreError

ANSWER_S = 4.0
ANY = -1
"""Of an operation: whatever the version is."""
SCHEME = "zookeeper://"
_HOST = re.compile(r"[A-Za-z0-9._-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")


class Conflict(Exception):
    """A node is not as an operation expects it; nothing of the transaction was done."""


class Node(NamedTuple):
    """What a node holds."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a transaction."""

    kind: str  # "create", "ephemeral" (ends with the session), "set", "check" or "delete"
    path: str
    data: bytes = b""
    version: int = ANY  # that the node must have


class Nodes(Protocol):
    """A tree of nodes. Each call raises an OffsetStoreError where ZooKeeper does not do it."""

    def get(self, path: str) -> Node | None:
        """Return a node; None where there is none."""

    def children(self, path: str) -> list[str]:
        """Return the names below a node, sorted; none where there is no node."""

    def ensure(self, path: str) -> None:
        """Make a node without content, and those above it, where there is none."""

    def transact(self, operations: Sequence[Operation]) -> None:
        """Do all or nothing; raise :class:`Conflict` where a node exists, does not, or has another version."""

    def close(self) -> None:
        """End the session."""


class Location(NamedTuple):
    """Where nodes are, and as whom they are read."""

    hosts: str  # host:port,host:port
    path: str  # begins with a slash, and ends without one; empty: the root
    user: str = ""

    @property
    def shown(self) -> str:
        """For messages; no password is in it."""
        return f"{SCHEME}{self.user + '@' if self.user else ''}{self.hosts}{self.path}"


def location_of(text: str, key: str) -> Location:
    """Return what ``[zookeeper://][user@]host:port,host:port/path`` says.

    >>> location_of("zookeeper://zk1:2181,zk2:2181/kafkastorm/orders", "--from-zookeeper").path
    '/kafkastorm/orders'

    Raises:
        ConfigError: it is out of form.
    """
    rest = text.strip().removeprefix(SCHEME)
    address, slash, path = rest.partition("/")
    user, _, hosts = address.rpartition("@")
    parts = [part for part in path.split("/") if part] if slash else []
    if ":" in user:
        raise ConfigError(f"{key} holds a password", cure="the user alone, and the password by reference (env:NAME)")
    if not hosts or not all(_HOST.fullmatch(host) for host in hosts.split(",")) or {".", ".."} & set(parts):
        raise ConfigError(f"{key} = {text!r} names no ZooKeeper", cure="zk1:2181,zk2:2181/root/id")
    return Location(hosts, "".join(f"/{part}" for part in parts), user)


def open_nodes(location: Location, password: str | None = None) -> Nodes:
    """Begin a session.

    Raises:
        MissingExtraError: kazoo is not installed.
        OffsetStoreError: no server answers.
    """
    try:
        import kazoo.client
    except ImportError:
        raise MissingExtraError("ZooKeeper needs kazoo", cure='pip install "downspout[zookeeper]"') from None
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # what it cannot do, it raises too
    auth = [("digest", f"{location.user}:{password or ''}")] if location.user else None
    acl = None
    if location.user:
        from kazoo.security import make_digest_acl

        acl = [make_digest_acl(location.user, password or "", all=True)]
    client = kazoo.client.KazooClient(location.hosts, timeout=10.0, auth_data=auth, default_acl=acl)
    try:
        client.start(timeout=ANSWER_S)
    except Exception as error:  # kazoo's own, and what resolving names raises
        with suppress(Exception):
            client.stop()
            client.close()
        raise OffsetStoreError(
            f"{location.shown}: no ZooKeeper answers within {ANSWER_S:g} s: {error}",
            cure="look at the hosts and ports, and whether it runs",
            passes=True,
        ) from error
    return KazooNodes(client, location.shown)


class KazooNodes:
    """See :class:`Nodes`."""

    def __init__(self, client: Any, shown: str) -> None:
        self._client = client
        self._shown = shown

    def get(self, path: str) -> Node | None:
        """Return a node."""
        from kazoo.exceptions import NoNodeError

        with self._asking(path):
            try:
                data, stat = self._client.get_async(path).get(timeout=ANSWER_S)
            except NoNodeError:
                return None
        return Node(data or b"", stat.version)

    def children(self, path: str) -> list[str]:
        """Return the names below a node."""
        from kazoo.exceptions import NoNodeError

        with self._asking(path):
            try:
                return sorted(self._client.get_children_async(path).get(timeout=ANSWER_S))
            except NoNodeError:
                return []

    def ensure(self, path: str) -> None:
        """Make a node and those above it."""
        with self._asking(path):
            self._client.ensure_path_async(path).get(timeout=ANSWER_S)

    def transact(self, operations: Sequence[Operation]) -> None:
        """Do all or nothing."""
        from kazoo import exceptions

        transaction = self._client.transaction()
        steps: dict[str, Callable[[Operation], Any]] = {
            "create": lambda each: transaction.create(each.path, each.data),
            "ephemeral": lambda each: transaction.create(each.path, each.data, ephemeral=True),
            "set": lambda each: transaction.set_data(each.path, each.data, each.version),
            "check": lambda each: transaction.check(each.path, each.version),
            "delete": lambda each: transaction.delete(each.path, each.version),
        }
        for operation in operations:
            steps[operation.kind](operation)
        with self._asking(operations[0].path):
            results = transaction.commit_async().get(timeout=ANSWER_S)
            for result, operation in zip(results, operations, strict=True):
                if not isinstance(result, Exception) or isinstance(result, exceptions.RolledBackError):
                    continue
                unexpected = exceptions.NoNodeError, exceptions.NodeExistsError, exceptions.BadVersionError
                if isinstance(result, unexpected) or type(result).__name__ == "RuntimeInconsistency":
                    raise Conflict(operation.path)
                raise result

    def close(self) -> None:
        """End the session."""
        with suppress(Exception):
            self._client.stop()
            self._client.close()

    @contextmanager
    def _asking(self, path: str) -> Iterator[None]:
        from kazoo import exceptions
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            yield
        except (exceptions.NoAuthError, exceptions.AuthFailedError) as error:
            raise OffsetStoreError(
                f"{self._shown}: no right to {path}",
                cure="zookeeper://user@hosts/…, with the password by reference, as a user whom the node's ACL allows",
            ) from error
        except (KazooTimeoutError, exceptions.ZookeeperError) as error:
            passes = isinstance(
                error,
                KazooTimeoutError
                | exceptions.ConnectionLoss
                | exceptions.SessionExpiredError
                | exceptions.ConnectionClosedError
                | exceptions.OperationTimeoutError,
            )
            raise OffsetStoreError(
                f"{self._shown}: {path}: {type(error).__name__} {error}".rstrip(),
                cure="look at ZooKeeper's log" if not passes else "look whether ZooKeeper runs",
                passes=passes,
            ) from error
