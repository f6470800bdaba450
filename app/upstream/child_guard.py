"""The process between the gateway and a server that it starts: it stops the server when the gateway ends.

`app.upstream.child` runs this file as a script, as the leader of a new process group: `child_guard.py GATEWAY_PID
COMMAND...`. It starts the command, forwards SIGTERM to it and exits with its exit code. It imports only the standard
library, so it starts in milliseconds and stays small.
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
# How long a server may keep running after its gateway was killed.
PARENT_POLL_S = 0.5


def main(gateway: int, command: list[str]) -> int:
    """Run the command until it or the gateway ends; returns the exit code as a shell would."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _only_wake)
    guard = os.getpid()
    # Looked up before the fork, because little is safe after it; None if the system has no such call.
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def die_with_guard() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(1)

    try:
        # preexec_fn is unsafe in a process with threads; this process has none, which is one reason why it exists.
        server = subprocess.Popen(command, preexec_fn=die_with_guard)  # noqa: PLW1509, S603
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error}\n")
        return 127

    def forward(_number: int, _frame: FrameType | None) -> None:
        server.terminate()

    signal.signal(signal.SIGTERM, forward)
    while (code := server.poll()) is None:
        if os.getppid() != gateway:
            # Kill the whole group: the server may have started processes (vLLM's engine is one).
            os.killpg(0, signal.SIGKILL)
        select.select([woken], [], [], PARENT_POLL_S)
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 64)
    return code if code >= 0 else 128 - code


def _only_wake(_number: int, _frame: FrameType | None) -> None:
    """Let SIGCHLD interrupt the wait; without a handler nothing is written to the wake-up descriptor."""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
