"""What is known of other processes on this machine."""

import gc
import os


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def spare_the_collector() -> None:
    """Leave what is there by now, which stays, out of every garbage collection to come, and collect less often.

    For a process that is about to serve: a quarter of its time under load went into looking through the same objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
