"""In a checkout, map ``downspout.spouts`` and ``downspout.bolts`` to the folders at its root, as the wheel does.

The repository is laid out as a streamparse project, so its own code imports ``spouts.kafka``. Users always import
``downspout.spouts.kafka``. Both names refer to the same module with the same classes, so ``isinstance`` and pickles
work with either. If a user's own ``spouts`` hides ours, ours is loaded under the longer name.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # not typing's: `import downspout` precedes the handler for Ctrl-C, so it imports nothing heavy
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_PACKAGE = "downspout."
_FOLDERS = ("spouts", "bolts")


class CheckoutFinder:
    """Finds ``downspout.spouts.…`` and ``downspout.bolts.…`` in the folders of a checkout."""

    def __init__(self, root: str) -> None:
        self._root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module in the two folders, None for any other."""
        if not name.startswith(_PACKAGE) or (short := name.removeprefix(_PACKAGE)).partition(".")[0] not in _FOLDERS:
            return None
        from importlib.machinery import ModuleSpec, PathFinder
        from importlib.util import find_spec

        folder = f"{self._root}/{short.partition('.')[0]}"
        package = find_spec(short.partition(".")[0])
        if package is None or folder not in (package.submodule_search_locations or ()):
            parent = "/".join((self._root, *short.split(".")[:-1]))
            return PathFinder.find_spec(name, [parent])
        if find_spec(short) is None:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system create a module, which :meth:`exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace this module with the one of the short name."""
        from importlib import import_module

        sys.modules[module.__name__] = import_module(module.__name__.removeprefix(_PACKAGE))


def install(package: str) -> None:
    """Install the finder if ``package``, the folder of ``downspout``, is in a checkout."""
    root = package.rpartition("/")[0]
    from os.path import isdir

    if isdir(f"{root}/spouts") and not isdir(f"{package}/spouts"):
        sys.meta_path.insert(0, CheckoutFinder(root))
