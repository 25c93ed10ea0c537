"""The program that ``downspout spark submit`` gives to spark-submit: ``downspout spark run`` with its arguments."""

import os
import sys
import threading
import time

GRACE_S = 5.0


def _end_with_the_jvm() -> None:
    """End this process after spark-submit, whose end closes our standard input."""
    while os.read(0, 4096):
        pass
    time.sleep(GRACE_S)  # for final messages
    leave_at_once(1)


if __name__ == "__main__":
    # Python puts a script's folder first, where our modules (kafka, storm) would hide libraries.
    if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]
    from downspout.exit_guard import guard, leave_at_once

    guard()
    from downspout.cli import main
    from downspout.spark.submit import write_driver_file

    threading.Thread(target=_end_with_the_jvm, daemon=True).start()
    write_driver_file()
    sys.exit(main(["spark", "run", *sys.argv[1:]]))
