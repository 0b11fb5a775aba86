"""The files that make containers: what they promise, without an engine. `make test-compose` runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from certificates import dated
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from packaging.requirements import Requirement

import rollserve
from rollserve_server.authority import Issued
from rollserve_server.metrics import known_metrics
from rollserve_server.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DEVELOPMENT = yaml.safe_load((ROOT / "docker-compose.dev.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OWN = [name for name, service in SERVICES.items() if "build" in service]
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/rollserve.json").read_text())
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
VOLUMES = ("authority", "client", "cluster", "gateway", "grafana")
"""Folders of the script of the service `secrets`."""
ServingStatus = HealthCheckResponse.ServingStatus


def locked(file: str = "requirements.lock") -> dict[str, tuple[str, int]]:
    """Return the packages of a lock: their versions and numbers of hashes."""
    text = (ROOT / file).read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, version = line.split()[0].split("==")
            found[normal(name)] = (version, line.count("--hash=sha256:"))
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def stages() -> list[str]:
    return re.findall(r"^FROM \S+ AS ([\w-]+)$", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize("name", SERVICES)
def test_service_has_limits_and_no_privileges(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert service["pids_limit"] > 0
    assert service["cpus"] > 0
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert not {"privileged", "cap_add", "pid"} & service.keys()
    assert service.get("user", "").partition(":")[0] not in ("0", "root")
    for mount in service.get("tmpfs", ()):
        assert "size=" in mount


def test_only_gateways_publish_a_port_and_on_this_machine_by_default() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {
        "gateway": ["${ROLLSERVE_PUBLISH:-127.0.0.1:50051}:50051"],
        "standby": ["${ROLLSERVE_PUBLISH_STANDBY:-127.0.0.1:50052}:50051"],
    }
    assert not any(service.get("network_mode") == "host" for service in SERVICES.values())


def test_development_publishes_on_this_machine_alone() -> None:
    for service in DEVELOPMENT["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert DEVELOPMENT["services"].keys() <= SERVICES.keys()


def test_nodes_of_the_cluster_and_prometheus_reach_nothing_else() -> None:
    assert COMPOSE["networks"]["cluster"]["internal"]
    assert COMPOSE["networks"]["monitoring"]["internal"]
    for name in ("head", "worker", "redis"):
        assert SERVICES[name]["networks"] == ["cluster"]
    assert SERVICES["trainer"]["networks"] == ["clients"]


def test_each_container_has_only_its_secrets() -> None:
    mounts = {
        name: {mount.split(":")[0] for mount in service.get("volumes", ()) if ":/secrets/" in mount}
        for name, service in SERVICES.items()
    }
    everything = mounts.pop("secrets")
    del mounts["backup"]  # which nothing reaches
    assert mounts == {
        "head": {"cluster-secrets"},
        "worker": {"cluster-secrets"},
        "gateway": {"cluster-secrets", "gateway-secrets"},
        "standby": {"cluster-secrets", "gateway-secrets"},
        "redis": {"cluster-secrets"},
        "trainer": {"client-secrets"},
        "prometheus": set(),
        "grafana": {"grafana-secrets"},
    }
    assert everything == set.union(*mounts.values()) | {"authority"}
    writers = [
        name
        for name, service in SERVICES.items()
        if any(":/secrets/" in mount and not mount.endswith(":ro") for mount in service.get("volumes", ()))
    ]
    assert writers == ["secrets"]


def test_services_start_in_the_order_of_their_health() -> None:
    def conditions(name: str) -> dict[str, str]:
        return {other: each["condition"] for other, each in SERVICES[name]["depends_on"].items()}

    assert conditions("head") == {"secrets": "service_completed_successfully"}
    assert conditions("worker") == {"head": "service_healthy"}
    assert conditions("gateway") == {"head": "service_healthy", "worker": "service_healthy"}
    assert conditions("trainer") == {"gateway": "service_healthy"}


def test_volumes_networks_and_targets_exist() -> None:
    for name, service in SERVICES.items():
        networks = service.get("networks", [])
        assert set(networks) <= COMPOSE["networks"].keys(), name
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).is_dir(), f"{name}: {mount}"
    assert {SERVICES[name]["build"]["target"] for name in OWN} == {"server", "worker", "trainer"}
    assert {"server", "worker", "trainer"} <= set(stages())
    assert "name" not in COMPOSE  # docker-compose 1.29 refuses it


def test_profiles_are_optional() -> None:
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {
        "standby": ["standby"],
        "redis": ["redis"],
        "backup": ["backup"],
        "trainer": ["example"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }


def test_settings_of_the_gateway_exist() -> None:
    known = {f"ROLLSERVE_{field.name.upper()}" for field in Settings.flat_fields()}
    for services in (COMPOSE["services"], DEVELOPMENT["services"]):
        given = {name for name in services["gateway"]["environment"] if name.startswith("ROLLSERVE_")}
        assert given <= known, given - known


def test_gateway_asks_clients_for_a_certificate_and_a_token() -> None:
    gateway, trainer = (SERVICES[name]["environment"] for name in ("gateway", "trainer"))
    assert {"ROLLSERVE_TLS_CLIENT_CA", "ROLLSERVE_TOKEN_HASHES"} <= gateway.keys()
    assert {"ROLLSERVE_CERT", "ROLLSERVE_KEY", "ROLLSERVE_TOKEN_FILE"} <= trainer.keys()


def test_cluster_asks_for_a_token() -> None:
    for name in ("head", "worker", "gateway"):
        assert SERVICES[name]["environment"]["RAY_AUTH_MODE"] == "token"


def test_own_images_have_the_version() -> None:
    for name in OWN:
        target = SERVICES[name]["build"]["target"]
        assert SERVICES[name]["image"] == f"rollserve-{target}:${{ROLLSERVE_VERSION:-{rollserve.__version__}}}"


def test_images_of_others_have_a_version() -> None:
    for name, service in SERVICES.items():
        if name not in (*OWN, "backup"):
            assert re.fullmatch(r"\$\{\w+_IMAGE:-[\w./-]+:v?\d+\.\d+\.\d+\}", service["image"]), name


def test_final_stages_run_as_a_user() -> None:
    of = {stage: base for base, stage in re.findall(r"^FROM (\S+) AS ([\w-]+)$", DOCKERFILE, re.MULTILINE)}
    for target in ("server", "server-gpu", "worker", "worker-gpu", "trainer"):
        chain = [target]
        while chain[-1] in of:
            chain.append(of[chain[-1]])
        assert "run" in chain, f"{target} is not built on the stage with the user"
        assert "build" not in chain, f"{target} has what packages are installed with"
    text = DOCKERFILE[DOCKERFILE.index("AS run\n") :]
    assert text.index("\nUSER 10001\n") < text.index("\nFROM ")


def test_images_have_labels_of_version_and_commit() -> None:
    assert f"org.opencontainers.image.version={rollserve.__version__} " in DOCKERFILE
    assert DOCKERFILE.count("LABEL org.opencontainers.image.revision=$COMMIT") == 3


def test_pip_in_images_checks_hashes() -> None:
    for command in re.findall(r"pip install[^&\n]*", DOCKERFILE):
        assert "--require-hashes" in command or "--no-index" in command, command


def test_lock_has_hashes_of_the_versions_that_are_tested() -> None:
    constraints = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    versions = {normal(name): version for name, version in constraints.items()}
    packages = locked()
    assert packages
    for name, (version, num_hashes) in packages.items():
        assert versions.get(name) == version, f"{name}: run `make requirements.lock`"
        assert num_hashes, name
    assert "http" not in (ROOT / "requirements.lock").read_text()


def test_lock_for_gpus_has_the_same_version_of_onnx_runtime() -> None:
    packages, others = locked("requirements-gpu.lock"), locked()
    assert packages["onnxruntime-gpu"][0] == others["onnxruntime"][0], "run `make requirements.lock`"
    assert all(num_hashes for _, num_hashes in packages.values())
    assert not packages.keys() & others.keys()
    assert "http" not in (ROOT / "requirements-gpu.lock").read_text()


@pytest.mark.parametrize(
    ("folder", "extras"), [("client", ""), ("server", "atari,data,envpool,mujoco,pettingzoo,tracing,video")]
)
def test_lock_has_all_requirements(folder: str, extras: str) -> None:
    command = [sys.executable, "deploy/requirements.py", folder, extras]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    packages = locked()
    for line in printed.splitlines():
        requirement = Requirement(line)
        version = packages[normal(requirement.name)][0]
        assert version in requirement.specifier, f"{line}: run `make requirements.lock`"
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    assert len(printed.splitlines()) >= len(project["dependencies"]) - 1


def test_unknown_extra_is_refused() -> None:
    command = [sys.executable, "deploy/requirements.py", "server", "atari,mojuco"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "mojuco" in done.stderr


def expressions() -> list[str]:
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    variables = [variable["definition"] for variable in DASHBOARD["templating"]["list"]]
    annotations = [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]
    return targets + variables + annotations + [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]


def test_dashboard_and_alerts_ask_for_metrics_that_exist() -> None:
    families = [family.name for family in known_metrics()]
    assert families
    for expression in expressions():
        for name in re.findall(r"\b(?:rollserve|process)_\w+", expression):
            family = re.sub(r"_(total|bucket|sum|count)$", "", name)
            assert family in families, f"{expression}: no metric {name}"


def test_panels_do_not_overlap_and_have_descriptions() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        assert panel["description"], panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_each_alert_is_documented_and_tested() -> None:
    alerts = [rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]]
    tested = (ROOT / "deploy/prometheus/alerts_test.yml").read_text()
    described = (ROOT / "docs/deployment.md").read_text()
    for alert in alerts:
        assert f"alertname: {alert}" in tested, alert
        assert f"`{alert}`" in described, alert


@pytest.mark.parametrize(("status", "expected"), [(ServingStatus.SERVING, 0), (ServingStatus.NOT_SERVING, 1)])
def test_check_of_health_waits_for_a_server_that_starts(
    status: HealthCheckResponse.ServingStatus, expected: int
) -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
    command = [sys.executable, "-I", "deploy/health.py", "grpc", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as check:
        with pytest.raises(subprocess.TimeoutExpired):
            check.wait(0.5)
        health = HealthServicer()
        health.set("", status)
        server = grpc.server(ThreadPoolExecutor(1))
        add_HealthServicer_to_server(health, server)
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        assert check.wait(30) == expected
        server.stop(None)


def test_check_of_health_passes_by_a_proxy_of_the_environment() -> None:
    health = HealthServicer()
    health.set("", ServingStatus.SERVING)
    server = grpc.server(ThreadPoolExecutor(1))
    add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    command = [sys.executable, "-I", "deploy/health.py", "grpc", str(port)]
    environment = {
        name: value for name, value in os.environ.items() if name.lower() not in ("no_proxy", "no_grpc_proxy")
    }
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), "http://127.0.0.1:9")  # nothing listens there
    check = subprocess.run(
        command, cwd=ROOT, env=environment | proxies, capture_output=True, text=True, timeout=60, check=False
    )
    server.stop(None)
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize("script", sorted((ROOT / "deploy").glob("*.sh")), ids=lambda path: path.name)
def test_shell_scripts_parse(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True)


def secrets(folder: Path, *arguments: str, killed_at: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script of the service `secrets`, with the volumes as folders, until it would write some file."""
    script = (ROOT / "deploy/secrets.sh").read_text().replace("cd /secrets", f"cd '{folder}'")
    script = script.replace('    mv "$1.new"', f'    [ "$1" != "{killed_at}" ] || kill -9 $$\n    mv "$1.new"')
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(folder), "ROLLSERVE_NAMES": "server.lab"}
    command = ["sh", "-c", script, "secrets.sh", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("command", ["make", "renew", pytest.param("renew-all", marks=pytest.mark.slow)])
def test_interrupted_secrets_are_finished_by_the_next_run(tmp_path: Path, command: str) -> None:
    for name in VOLUMES:
        (tmp_path / name).mkdir()
    if command != "make":
        assert secrets(tmp_path).returncode == 0
    assert secrets(tmp_path, command, killed_at="gateway/server.pem").returncode == -signal.SIGKILL
    assert secrets(tmp_path).returncode == 0
    for name in (
        "gateway/server-key",
        "gateway/server",
        "gateway/ca",
        "client/client-key",
        "client/client",
        "client/ca",
    ):
        path = tmp_path / f"{name}.pem"
        assert path.read_bytes() == (tmp_path / "authority" / path.name).read_bytes()
    done = {path: path.read_bytes() for path in tmp_path.glob("*/*.pem")}
    assert secrets(tmp_path).returncode == 0
    assert done == {path: path.read_bytes() for path in done}


def test_secrets_are_renewed_and_an_expired_authority_refuses(tmp_path: Path) -> None:
    for name in VOLUMES:
        (tmp_path / name).mkdir()

    def handed_out() -> dict[str, bytes]:
        return {
            f"{folder}/{path.name}": path.read_bytes()
            for folder in ("gateway", "client")
            for path in (tmp_path / folder).glob("*.pem")
        }

    made = secrets(tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("valid until") == 3
    first = handed_out()
    (tmp_path / "gateway" / "server.pem").write_text("of another authority")
    (tmp_path / "client" / "ca.pem").unlink()
    for kept in (False, True):  # the first time, a volume is new
        assert secrets(tmp_path).returncode == 0
        assert (handed_out() == first) is not kept
        (tmp_path / "gateway" / "server.pem").write_text("of another authority")
    renewed = secrets(tmp_path, "renew")
    assert renewed.returncode == 0, renewed.stderr
    assert "server of gateway, server.lab, localhost" in renewed.stdout
    second = handed_out()
    assert {name for name in first if first[name] == second[name]} == {"gateway/ca.pem", "client/ca.pem"}
    own = Issued(*((tmp_path / "authority" / name).read_bytes() for name in ("ca.pem", "ca-key.pem")))
    (tmp_path / "authority" / "ca.pem").write_bytes(dated(own, own, starts=-400, expires=-1))
    refused = secrets(tmp_path, "renew")
    assert refused.returncode == 1
    assert "renew-all" in refused.stderr
    assert handed_out() == second
    assert secrets(tmp_path, "renew-all").returncode == 0
    third = handed_out()
    assert not {name for name in second if second[name] == third[name]}
    assert third["gateway/ca.pem"] == third["client/ca.pem"]
