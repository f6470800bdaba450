"""The process between the gateway and a server that it starts: when the gateway is gone, so is the server.

Run as a script, by `child_server`, as the leader of a process group of its own: `child_guard.py GATEWAY_PID
COMMAND...`. It starts the command, hands SIGTERM on to it and ends with its exit code. It imports the standard
library alone, so that it starts in milliseconds and stays small.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from types import FrameType

PR_SET_PDEATHSIG = 1
# How long a server may outlive a gateway that was killed.
PARENT_POLL_S = 0.5


def main(gateway: int, command: list[str]) -> int:
    """Run the command until it ends, or until the gateway does; the exit code of a shell."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _only_wake)
    guard = os.getpid()
    # Looked up before the fork, after which little is safe; None where the system has no such call.
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def die_with_guard() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(1)

    try:
        # preexec_fn is unsafe beside other threads; here there are none, which is one reason for this process.
        server = subprocess.Popen(command, preexec_fn=die_with_guard)  # noqa: PLW1509, S603
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error}\n")
        return 127

    def hand_on(_number: int, _frame: FrameType | None) -> None:
        server.terminate()

    signal.signal(signal.SIGTERM, hand_on)
    while (code := server.poll()) is None:
        if os.getppid() != gateway:
            # The server may have started processes of its own (vLLM's engine is one): all of them, and this one.
            os.killpg(0, signal.SIGKILL)
        select.select([woken], [], [], PARENT_POLL_S)
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 64)
    return code if code >= 0 else 128 - code


def _only_wake(_number: int, _frame: FrameType | None) -> None:
    """Let a signal interrupt the wait; without a handler the wake-up descriptor stays silent."""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
