"""Load balancers in front of gateways: HAProxy (Debian) and Envoy (PyPI), as an operator would set them up.

Both check `/readyz` every half second and take a gateway out after two failures. None of them retries a request.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from tests.drills.servers import running
from tests.e2e.processes import REPO
from tests.wire.servers import free_port

ENVOY = REPO / ".venv-drills/bin/envoy"


@contextmanager
def haproxy(folder: Path, ports: Sequence[int], *, mode: str) -> Iterator[str]:
    """HAProxy in `http` or `tcp` mode; yields its URL."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    servers = "\n".join(f"  server g{one} 127.0.0.1:{one} check" for one in ports)
    (folder / "haproxy.cfg").write_text(f"""
defaults
  mode {mode}
  retries 0
  timeout connect 10s
  timeout check 10s
  timeout client 60s
  timeout server 60s
frontend questions
  bind 127.0.0.1:{port}
  default_backend gateways
backend gateways
  balance roundrobin
  option httpchk GET /readyz
  default-server inter 500ms fall 2 rise 1
{servers}
""")
    with running("haproxy", "-db", "-f", str(folder / "haproxy.cfg"), folder=folder, ready=lambda: _healthy(port)):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def envoy(folder: Path, ports: Sequence[int]) -> Iterator[str]:
    """Envoy with its defaults; yields its URL."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "envoy.yaml").write_text(yaml.safe_dump(_envoy_config(port, ports)))
    arguments = ("-c", str(folder / "envoy.yaml"), "--concurrency", "1", "--disable-hot-restart", "-l", "warning")
    with running(str(ENVOY), *arguments, folder=folder, ready=lambda: _healthy(port)):
        yield f"http://127.0.0.1:{port}"


def _envoy_config(port: int, ports: Sequence[int]) -> dict[str, object]:
    http = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    manager = {
        "@type": http,
        "stat_prefix": "questions",
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "gateways", "timeout": "60s"}}],
                }
            ]
        },
    }
    check = {
        "timeout": "10s",
        "interval": "0.5s",
        "no_traffic_interval": "0.5s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        # By default the host is the cluster's name, which a gateway without keys refuses.
        "http_health_check": {"path": "/readyz", "host": "localhost"},
    }
    cluster = {
        "name": "gateways",
        "connect_timeout": "10s",
        "health_checks": [check],
        "load_assignment": {
            "cluster_name": "gateways",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(one)}} for one in ports]}],
        },
    }
    listener = {
        "name": "questions",
        "address": _address(port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
