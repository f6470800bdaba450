"""Which processes of this machine run."""

import os


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
