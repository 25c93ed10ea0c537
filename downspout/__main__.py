"""``python -m downspout``: the same as the ``downspout`` program."""

import sys

from downspout.cli import main

if __name__ == "__main__":
    sys.exit(main())
