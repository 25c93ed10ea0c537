"""What ``spark-submit`` runs for ``downspout spark submit``: ``downspout spark run`` with the rest of the arguments."""

import os
import sys

if __name__ == "__main__":
    # Python puts a script's folder first, and the modules that lie here (kafka, storm) would hide libraries.
    if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]
    from downspout.cli import main

    sys.exit(main(["spark", "run", *sys.argv[1:]]))
