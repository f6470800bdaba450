"""Who may ask: keys, and what each allows.

`api`, `wiring` and `cli` import it.
"""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from app.settings import groups


def keys_required(settings: groups.Access, host: str) -> bool:
    """Whether every request needs a key: the settings name a file of keys, or other machines can reach the host."""
    return settings.keys is not None or (not settings.open_to_anyone and reachable_from_outside(host))


def reachable_from_outside(host: str) -> bool:
    """Whether other machines may reach the address that is listened on; True if unsure. A name is looked up: blocks."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host or None, None, flags=socket.AI_PASSIVE)}
    except OSError:
        return True
    return not all(_loopback(ip_address(one.partition("%")[0])) for one in found)


def _loopback(address: IPv4Address | IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
