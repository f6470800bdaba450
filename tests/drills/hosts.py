"""Other hosts: network namespaces, each with a cable to this one."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace. `address` is its own; `gateway` is ours on the same cable."""

    name: str
    address: str
    gateway: str

    @property
    def prefix(self) -> Sequence[str]:
        """Put this before a command to run it there."""
        return ("ip", "netns", "exec", self.name)

    def cut_off(self) -> None:
        """Drop every packet that arrives there, without any reply."""
        _run(*self.prefix, "iptables", "-w", "-I", "INPUT", "!", "-i", "lo", "-j", "DROP")

    def reconnect(self) -> None:
        """Let packets through again."""
        _run(*self.prefix, "iptables", "-w", "-F", "INPUT")


@contextmanager
def host() -> Iterator[Host]:
    """A new host; removed at the end with its cable, after which its processes reach nobody."""
    assert os.geteuid() == 0, "only root can make network namespaces"
    # An interface's name has at most 15 characters.
    name = f"fw{uuid4().hex[:10]}"
    # Some /30 of 10.64.0.0/10; one that is taken makes `ip` fail.
    net = uuid4().int % 2**20 * 4
    first, second = (f"10.{64 + (net >> 16)}.{net >> 8 & 255}.{(net & 255) + end}" for end in (1, 2))
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        _run("ip", "address", "add", f"{first}/30", "dev", f"{name}a")
        _run("ip", "link", "set", f"{name}a", "up")
        _run("ip", "-n", name, "address", "add", f"{second}/30", "dev", f"{name}b")
        _run("ip", "-n", name, "link", "set", f"{name}b", "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        yield Host(name, second, first)
    finally:
        subprocess.run(["ip", "link", "del", f"{name}a"], check=False)
        _run("ip", "netns", "del", name)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
