"""The lock between processes, and concurrent checks whether it is held."""

from __future__ import annotations

import fcntl
from pathlib import Path

from downspout.system import FileLock
from downspout.system.files import is_held
from downspout.testing import VirtualClock


def test_those_who_look_do_not_see_each_other(tmp_path: Path) -> None:
    """Who looks whether a lock is held finds it free while another does, and held while somebody has it."""
    path = tmp_path / "lock"
    path.touch()
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # as a look does, for a moment
        assert not is_held(path)
    with FileLock(path):
        assert is_held(path)
    assert not is_held(path)


def test_a_look_keeps_nobody_from_the_lock(tmp_path: Path) -> None:
    """Who takes the lock at the moment of a look waits for that, and gets it; a holder is not waited for."""
    path = tmp_path / "lock"
    path.touch()
    look = path.open()
    fcntl.flock(look, fcntl.LOCK_SH)

    class Meanwhile(VirtualClock):
        """The look is over as soon as somebody waits."""

        def sleep(self, seconds: float) -> None:
            look.close()
            super().sleep(seconds)

    lock = FileLock(path)
    assert lock.acquire(clock=Meanwhile())
    assert not FileLock(path).acquire()
    lock.release()
