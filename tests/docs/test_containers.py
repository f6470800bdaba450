"""The images and the compose stack agree with the repository: settings, paths, versions, users, secrets."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
MAKEFILE = (ROOT / "Makefile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD = PYPROJECT["project"], PYPROJECT["build-system"]["requires"]
LOCKED = dict(
    found
    for name in ("build", "lean", "torch", "embedded", "dev")
    for found in re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / f"requirements/{name}.txt").read_text(), re.MULTILINE)
)
SETTINGS = set(variables())

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES.keys())
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda stage: stage.name)


def pinned(package: str) -> str:
    """The locked version of a package of the gateway."""
    return LOCKED[package]


def is_pinned(image: str) -> bool:
    """Whether the tag names one exact version."""
    return re.fullmatch(r"[\w./-]+:(\w+-)?v?\d+\.\d+\.\d+(-[\w-]+)?(@sha256:[0-9a-f]{64})?", image) is not None


def test_only_full_versions_count_as_pinned() -> None:
    """Tags with fewer numbers float."""
    assert is_pinned("prom/prometheus:v3.1.0")
    assert is_pinned("ghcr.io/some/server:cpu-1.9.3")
    assert is_pinned(f"prom/prometheus:v3.1.0@sha256:{'0' * 64}")
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
    """It can drain and finish answers in progress, then the log and the embedded reader, before it is killed."""
    limits = Settings.of().limits
    for name in ("gateway-lean", "gateway-embedded"):
        grace = re.fullmatch(r"(\d+)s", SERVICES[name]["stop_grace_period"])
        assert grace
        assert int(grace[1]) >= limits.drain_s + limits.shutdown_timeout_s + 15


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


def test_images_are_installed_as_by_make() -> None:
    """The embedded image runs the installs of `make serve` in the same order, so every `make` tests them."""
    recipe = MAKEFILE[MAKEFILE.index("\n$(SERVING):") : MAKEFILE.index("\n$(INSTALLED):")]
    torch, serving, own = re.findall(r"^\t@(.*\(PIP\).*|.*call torch.*|.*pip install.*)$", recipe, re.MULTILINE)
    assert torch.startswith("$(call torch,")
    (defined,) = re.findall(r"^torch = (.*)$", MAKEFILE, re.MULTILINE)
    steps = [install for step in STAGES["build-embedded"].all("RUN") for install in pip_installs(step.command)]
    assert [name for step in steps[:2] for name in files(step)] == files([defined]) == ["torch", "cuda"]
    assert [files(step) for step in steps[2:]] == [files([serving]), files([own])]
    lean = [install for step in STAGES["build-lean"].all("RUN") for install in pip_installs(step.command)]
    assert [files(step) for step in lean] == [["build", "lean"], []]
    for *checked, last in (steps, lean):
        assert all(step[:3] == ["--require-hashes", "--no-deps", "--only-binary=:all:"] for step in checked)
        assert last == ["--no-deps", "--no-build-isolation", "."]


def files(install: list[str]) -> list[str]:
    """The files of requirements that an installation names."""
    return re.findall(r"requirements/(\w+)\.txt", " ".join(install))


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.stem)
def test_every_requirement_has_a_version_and_a_hash(path: Path) -> None:
    """Otherwise pip refuses the file."""
    for line in path.read_text().splitlines()[1:]:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.+]+ --hash=sha256:[0-9a-f]{64}", line), line


def test_the_lock_satisfies_the_project() -> None:
    """Every dependency and every extra but vLLM itself is locked, in a version that pyproject.toml allows."""
    extras = {name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name != "vllm"}
    for wanted in (*PROJECT["dependencies"], *(one for extra in extras.values() for one in extra), *BUILD):
        requirement = Requirement(wanted)
        assert requirement.specifier.contains(LOCKED[canonicalize_name(requirement.name)]), wanted
    assert all("==" in one for one in BUILD)


def test_no_install_reads_a_second_index() -> None:
    """A second index could replace any package by one of the same name."""
    for path in ("Makefile", "Dockerfile", "docker-compose.yml", ".ci/run", "pyproject.toml"):
        assert "extra-index-url" not in (ROOT / path).read_text()


def test_lean_image_has_no_engine() -> None:
    """It has HTTP clients and parsers, and nothing that runs or fits a model."""
    names = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements/lean.txt").read_text(), re.MULTILINE))
    assert not names & {"torch", "xllamacpp", "qdrant-edge-py", "sentence-transformers", "scikit-learn", "matplotlib"}


@each_service
def test_services_have_no_privileges(service: dict[str, Any]) -> None:
    """No process gains rights that it did not start with, and none has a capability that it does not need."""
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["cap_drop"] == ["ALL"]


def test_upstreams_need_keys(tmp_path: Path) -> None:
    """`make stack-keys` makes a key for vLLM and one for Qdrant, which the stack requires; the gateway has both."""
    assert [SERVICES[name]["env_file"] for name in ("vllm", "qdrant")] == [["vllm.env"], ["qdrant.env"]]
    shutil.copy(ROOT / "Makefile", tmp_path)
    for _ in range(2):
        subprocess.run(["make", "stack-keys"], cwd=tmp_path, check=True, capture_output=True)
    made = {path.name: dict(line.split("=") for line in path.read_text().split()) for path in tmp_path.glob("*.env")}
    reader, vectors = made["vllm.env"]["VLLM_API_KEY"], made["qdrant.env"]["QDRANT__SERVICE__API_KEY"]
    assert made["fetchwise.env"] == {"FETCHWISE_READER_API_KEY": reader, "FETCHWISE_VECTORS_API_KEY": vectors}
    assert made["fetchwise.env"].keys() <= SETTINGS
    assert len(reader) > 38
    assert reader != vectors
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.env")} == {0o600}
    assert {*made} <= set((ROOT / ".gitignore").read_text().split())


def test_images_can_be_pinned_by_digest(tmp_path: Path) -> None:
    """`make digests` asks the registries through docker and writes each digest behind its tag, once."""
    for name in ("Makefile", "Dockerfile", "docker-compose.yml"):
        shutil.copy(ROOT / name, tmp_path)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f"#!/bin/sh\necho sha256:{'0a' * 32}\n")
    docker.chmod(0o755)
    environment = {"PATH": f"{docker.parent}:{os.environ['PATH']}"}
    for _ in range(2):
        subprocess.run(["make", "digests"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    images = [
        *(
            service["image"]
            for service in yaml.safe_load((tmp_path / "docker-compose.yml").read_text())["services"].values()
        ),
        *(stage.image for stage in stages(tmp_path / "Dockerfile").values()),
    ]
    foreign = [image for image in images if not image.startswith("fetchwise:")]
    assert len(foreign) > 6
    assert all(re.search(r":[^@]+@sha256:(0a){32}$", image) for image in foreign)
