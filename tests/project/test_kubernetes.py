"""The manifest for Kubernetes: against the schemas of Kubernetes, the settings of the server, and itself.

KubeRay's own schema is in no package: the fields of a RayCluster are compared with the few that the manifest uses, and
its pods with the schema of pods.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import rollserve
from rollserve_server.settings import Settings

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "rollserve.yaml"
KUBERNETES = "1.31"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST.read_text()))
RAY_CLUSTER = next(each for each in DOCUMENTS if each["kind"] == "RayCluster")
DEPLOYMENT = next(each for each in DOCUMENTS if each["kind"] == "Deployment")
RAY_KEYS = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
GROUP_KEYS = {"rayStartParams", "template"}
WORKER_GROUP_KEYS = {*GROUP_KEYS, "groupName", "replicas", "minReplicas", "maxReplicas"}


def name_of(document: dict[str, Any]) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


def pod_templates() -> list[dict[str, Any]]:
    groups = [RAY_CLUSTER["spec"]["headGroupSpec"], *RAY_CLUSTER["spec"]["workerGroupSpecs"]]
    return [*(group["template"] for group in groups), DEPLOYMENT["spec"]["template"]]


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each is not RAY_CLUSTER], ids=name_of)
def test_document_has_the_schema_of_its_kind(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_unknown_field_has_no_schema() -> None:
    wrong = copy.deepcopy(DEPLOYMENT)
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


@pytest.mark.parametrize("template", pod_templates(), ids=["head", "worker", "gateway"])
def test_pods_have_the_schema_of_pods(template: dict[str, Any]) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", **template["metadata"]},
        "spec": template["spec"],
    }
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_cluster_has_known_fields() -> None:
    spec = RAY_CLUSTER["spec"]
    assert RAY_CLUSTER["apiVersion"] == "ray.io/v1"
    assert spec.keys() == RAY_KEYS
    assert spec["headGroupSpec"].keys() == GROUP_KEYS
    for group in spec["workerGroupSpecs"]:
        assert group.keys() == WORKER_GROUP_KEYS
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


@pytest.mark.parametrize("template", pod_templates(), ids=["head", "worker", "gateway"])
def test_pods_are_confined_bounded_and_watched(template: dict[str, Any]) -> None:
    spec = template["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert not spec["automountServiceAccountToken"]
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not context["allowPrivilegeEscalation"]
        assert container["resources"]["limits"].keys() == {"cpu", "memory"}
        assert {"readinessProbe", "livenessProbe"} <= container.keys()
        assert container["image"] == f"rollserve-server:{rollserve.__version__}"
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def gateway_settings() -> dict[str, str]:
    environment = DEPLOYMENT["spec"]["template"]["spec"]["containers"][0]["env"]
    prefix = "ROLLSERVE_"
    return {
        each["name"].removeprefix(prefix).lower(): each["value"]
        for each in environment
        if each["name"].startswith(prefix)
    }


def test_variables_of_the_gateway_are_settings(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    settings = Settings.from_flat({**gateway_settings(), "sampler_secret_file": secret})
    head = RAY_CLUSTER["metadata"]["name"] + "-head-svc"  # as KubeRay names the service of the head
    assert settings.ray.ray_address == f"{head}:6379"
    assert settings.gateway.tls.tls_cert is not None
    assert settings.pool.workers is not None


def test_workers_have_room() -> None:
    settings = gateway_settings()
    group = RAY_CLUSTER["spec"]["workerGroupSpecs"][0]
    cores = int(group["rayStartParams"]["num-cpus"])
    assert int(settings["workers"]) <= group["replicas"] * cores
    assert int(settings["max_workers"]) <= group["maxReplicas"] * cores


def test_selectors_select_pods() -> None:
    labels = [template["metadata"]["labels"] for template in pod_templates()]
    for document in DOCUMENTS:
        spec = document["spec"]
        selector = spec.get("selector") or spec.get("podSelector")
        if selector is None:
            continue
        wanted = (
            selector.get("matchLabels", {}) if "matchLabels" in selector or "matchExpressions" in selector else selector
        )
        assert any(wanted.items() <= each.items() for each in labels), name_of(document)


def test_probes_ask_where_the_health_service_listens() -> None:
    port = int(gateway_settings()["health_listen"].rpartition(":")[2])
    container = DEPLOYMENT["spec"]["template"]["spec"]["containers"][0]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"]["port"] == port
