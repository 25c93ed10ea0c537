"""Our ``sparse``: stock streamparse's, after a look at whether there is a Storm that it could talk to.

streamparse answers a nimbus that does not run with a traceback of Thrift's. In the environment of ``downspout storm
shell`` this stands before the real program, which it runs unchanged: it says what is wrong, or gets out of the way.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from downspout.errors import DownspoutError, MissingExtraError, StormError
from downspout.storm.node import StormNode, default_directory
from downspout.storm.status import Status

ON_A_CLUSTER = frozenset({"submit", "kill", "list"})


def check(arguments: Sequence[str]) -> None:
    """Raise if a command needs our Storm and it does not run.

    Raises:
        StormError: it does not; the message says in which state it is.
    """
    if not arguments or arguments[0] not in ON_A_CLUSTER or {"-h", "--help"}.intersection(arguments):
        return
    node = StormNode(default_directory())
    status, address = node.status(), os.environ.get("STREAMPARSE_NIMBUS")
    if address is not None and address != status.nimbus:
        raise_if_moved(status, address)
        return
    if status.state != "running" and (status := node.settled()).state != "running":
        raise StormError(
            f"Storm is {status.condition} ({node.directory}), so `sparse {arguments[0]}` has nobody to talk to",
            cure=status.cure,
        )


def raise_if_moved(status: Status, address: str) -> None:
    """Raise if the shell is older than the node's port; an address elsewhere is the user's own."""
    if status.state == "running" and address.startswith("127.0.0.1:"):
        raise StormError(
            f"This shell looks for nimbus at {address}, and it is at {status.nimbus} now",
            cure='leave the shell and enter it again, or `eval "$(downspout storm env)"`',
        )


def main(argv: Sequence[str] | None = None) -> int:  # noqa: RET503 (execv does not return)
    """Check, then become the real ``sparse``, which does not return."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        check(arguments)
        real = shutil.which("sparse", path=str(Path(sys.executable).parent))
        if real is None:
            raise MissingExtraError(
                f"There is no sparse beside {sys.executable}", cure="`pip install streamparse` into that environment"
            )
    except DownspoutError as error:
        print(f"downspout: {error}", file=sys.stderr)
        return error.exit_code
    os.execv(real, [real, *arguments])


if __name__ == "__main__":
    sys.exit(main())
