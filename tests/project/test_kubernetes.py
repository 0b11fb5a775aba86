"""The chart for Kubernetes and the manifest that it makes: schemas, settings of the server, and what belongs together.

Helm renders the chart (`.ci/helm.py` installs it); without it, the manifest alone is checked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

import rollserve
from rollserve_server.settings import Settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm"
MANIFEST = ROOT / "deploy" / "kubernetes" / "rollserve.yaml"
CRDS = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "crds").glob("*.json")}
"""Schemas of KubeRay 1.7.0, cert-manager 1.21.1 and the Prometheus operator 0.93.0."""
KUBERNETES = ("1.31", "1.34", "1.37")
HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") or ""
needs_helm = pytest.mark.skipif(not HELM, reason="no helm on this machine: .ci/helm.py installs it on Linux on x86-64")

Document = dict[str, Any]
EVERYTHING: Document = {
    "pullSecrets": ["registry"],
    "gateways": [
        {"name": "one"},
        {"name": "two", "sampler": "other", "namespace": "team", "settings": {"env": "Acrobot-v1", "max-workers": 32}},
    ],
    "gateway": {"nodeSelector": {"disk": "ssd"}, "extraEnv": [{"name": "TZ", "value": "UTC"}]},
    "workerGroups": [
        {
            "name": "workers",
            "cores": 4,
            "replicas": 2,
            "minReplicas": 1,
            "maxReplicas": 8,
            "objectStoreBytes": 1 << 30,
            "extraVolumes": [{"name": "roms", "configMap": {"name": "roms"}}],
            "extraVolumeMounts": [{"name": "roms", "mountPath": "/roms"}],
        },
        {
            "name": "gpus",
            "cores": 8,
            "gpus": 2,
            "replicas": 1,
            "minReplicas": 0,
            "maxReplicas": 4,
            "objectStoreBytes": 2 << 30,
            "image": {"tag": "1.2.3-gpu"},
            "runtimeClassName": "nvidia",
            "nodeSelector": {"accelerator": "nvidia"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
    ],
    "persistence": {"accessMode": "ReadWriteMany"},
    "autoscaling": {"enabled": True},
    "gcsFaultTolerance": {
        "redisAddress": "redis:6380",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}},
    },
    "tls": {"certManager": {"enabled": True}, "names": ["rl.example.org"]},
    "service": {"external": "LoadBalancer"},
    "monitoring": {"serviceMonitor": True, "prometheusRule": True, "labels": {"release": "prometheus"}},
}
BARE: Document = {
    "tokens": False,
    "tls": {"clientCertificates": False},
    "persistence": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudgets": False,
}
VARIANTS = {"defaults": {}, "everything": EVERYTHING, "bare": BARE}


def helm(*arguments: str, values: Document | None = None) -> subprocess.CompletedProcess[str]:
    text = yaml.safe_dump(values or {})
    return subprocess.run(
        [HELM, *arguments, "--values", "-"], input=text, cwd=CHART, capture_output=True, text=True, check=False
    )


@cache
def rendered(variant: str) -> list[Document]:
    done = helm("template", "rollserve", ".", "--namespace", "team", values=VARIANTS[variant])
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def the_manifest() -> list[Document]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def everything() -> list[Document]:
    return rendered("everything")


SOURCES = [
    pytest.param(the_manifest, id="manifest"),
    pytest.param(everything, id="everything", marks=needs_helm),
    pytest.param(lambda: rendered("bare"), id="bare", marks=needs_helm),
]
Source = Callable[[], list[Document]]


def of_kind(documents: Iterable[Document], kind: str) -> dict[str, Document]:
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def cluster_of(documents: list[Document]) -> Document:
    (cluster,) = of_kind(documents, "RayCluster").values()
    spec: Document = cluster["spec"]
    return spec


def pod_templates(documents: list[Document]) -> list[Document]:
    spec = cluster_of(documents)
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    deployments = of_kind(documents, "Deployment").values()
    return [each["template"] for each in groups] + [each["spec"]["template"] for each in deployments]


def gateway_settings(deployment: Document) -> dict[str, str]:
    environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    prefix = "ROLLSERVE_"
    return {
        each["name"].removeprefix(prefix).lower(): each["value"]
        for each in environment
        if each["name"].startswith(prefix)
    }


def num_bytes(quantity: str | int) -> int:
    text = str(quantity)
    return int(text[:-2]) << {"Mi": 20, "Gi": 30}[text[-2:]] if text.endswith("i") else int(text)


@needs_helm
def test_manifest_is_the_chart_with_its_defaults() -> None:
    done = subprocess.run([MANIFEST.with_name("manifest.sh"), HELM], capture_output=True, text=True, check=True)
    assert done.stdout == MANIFEST.read_text(), "run `make manifest`"


@needs_helm
@pytest.mark.parametrize("variant", VARIANTS)
def test_chart_has_no_faults(variant: str) -> None:
    done = helm("lint", "--strict", ".", values=VARIANTS[variant])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("source", SOURCES)
def test_documents_have_the_schemas_of_their_kinds(source: Source, version: str) -> None:
    documents = source()
    for document in documents:
        if document["kind"] in CRDS:
            jsonschema.validate(document, CRDS[document["kind"]])
        else:
            kubernetes_validate.validate(document, version, strict=True)
    for template in pod_templates(documents):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **template["metadata"]}}
        kubernetes_validate.validate(pod | {"spec": template["spec"]}, version, strict=True)


def test_unknown_fields_have_no_schema() -> None:
    (deployment,) = of_kind(the_manifest(), "Deployment").values()
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES[0], strict=True)
    (cluster,) = of_kind(the_manifest(), "RayCluster").values()
    cluster["spec"]["workerGroupSpecs"][0]["maximumReplicas"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maximumReplicas"):
        jsonschema.validate(cluster, CRDS["RayCluster"])


@needs_helm
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"gateways": []}, "gateways"),
        ({"gateways": [{"sampler": "x"}]}, "name"),
        ({"settings": {"MAX_WORKERS": 3}}, "MAX_WORKERS"),
        ({"autoscaling": {"enable": True}}, "enable"),
        ({"worker": {"spillBytes": "1Gi"}}, "spillBytes"),
    ],
)
def test_wrong_values_are_refused(values: Document, named: str) -> None:
    done = helm("template", "rollserve", ".", values=values)
    assert done.returncode != 0
    assert named in done.stderr


@pytest.mark.parametrize("source", SOURCES)
def test_pods_are_confined_bounded_and_watched(source: Source) -> None:
    documents = source()
    scaled = cluster_of(documents).get("enableInTreeAutoscaling", False)
    for template in pod_templates(documents):
        spec = template["spec"]
        is_head = template["metadata"]["labels"]["app.kubernetes.io/component"] == "head"
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["automountServiceAccountToken"] == (is_head and scaled)
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not context["allowPrivilegeEscalation"]
            assert container["resources"]["limits"].keys() >= {"cpu", "memory", "ephemeral-storage"}
            assert {"readinessProbe", "livenessProbe"} <= container.keys()
            assert container["image"] in (f"rollserve-server:{rollserve.__version__}", "rollserve-server:1.2.3-gpu")
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize("source", SOURCES)
def test_pods_have_room_for_what_workers_may_take_and_spill(source: Source) -> None:
    documents = source()
    settings = gateway_settings(next(iter(of_kind(documents, "Deployment").values())))
    for group in cluster_of(documents)["workerGroupSpecs"]:
        cores, store = (int(group["rayStartParams"][name]) for name in ("num-cpus", "object-store-memory"))
        spec = group["template"]["spec"]
        limits = spec["containers"][0]["resources"]["limits"]
        volumes = {volume["name"]: volume.get("emptyDir", {}) for volume in spec["volumes"]}
        assert int(limits["cpu"]) == cores
        assert num_bytes(limits["memory"]) > cores * int(settings["worker_max_memory_bytes"]) + store
        spilled = num_bytes(volumes["tmp"]["sizeLimit"])
        assert num_bytes(limits["ephemeral-storage"]) >= spilled > cores * int(settings["worker_spill_bytes"])
        assert num_bytes(volumes["shared-memory"]["sizeLimit"]) > store


@pytest.mark.parametrize("source", SOURCES)
def test_variables_of_gateways_are_settings(source: Source, tmp_path: Path) -> None:
    documents = source()
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    (cluster,) = of_kind(documents, "RayCluster")
    names = set()
    for deployment in of_kind(documents, "Deployment").values():
        given = gateway_settings(deployment)
        settings = Settings.from_flat({**given, "sampler_secret_file": secret})
        assert settings.ray.ray_address == f"{cluster}-head-svc:6379"  # as KubeRay names the service of the head
        names.add((given["ray_namespace"], given["sampler_name"]))
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["grpc"]["port"] == int(given["health_listen"].rpartition(":")[2])
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        for name in ("tls_cert", "tls_client_ca", "token_hashes", "sampler_secret_file", "save_path"):
            assert name not in given or str(Path(given[name]).parent) in paths, name
    assert len(names) == len(of_kind(documents, "Deployment"))


def test_defaults_ask_for_certificates_and_tokens_save_and_have_room() -> None:
    documents = the_manifest()
    (deployment,) = of_kind(documents, "Deployment").values()
    settings = gateway_settings(deployment)
    assert {"tls_client_ca", "token_hashes", "save_path"} <= settings.keys()
    (group,) = cluster_of(documents)["workerGroupSpecs"]
    cores = int(group["rayStartParams"]["num-cpus"])
    assert int(settings["workers"]) <= group["replicas"] * cores
    assert int(settings["max_workers"]) <= group["maxReplicas"] * cores
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


@pytest.mark.parametrize("source", SOURCES)
def test_selectors_select_pods(source: Source) -> None:
    documents = source()
    labels = [template["metadata"]["labels"] for template in pod_templates(documents)]
    for document in documents:
        spec = document.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector")
        if selector is None or document["kind"] == "ServiceMonitor":
            continue
        wanted = selector.get("matchLabels", {}) if document["kind"] != "Service" else selector
        assert wanted
        assert any(wanted.items() <= each.items() for each in labels), document["metadata"]["name"]


@pytest.mark.parametrize("source", SOURCES)
def test_budgets_let_a_drain_pass(source: Source) -> None:
    documents = source()
    budgets = of_kind(documents, "PodDisruptionBudget")
    spec = cluster_of(documents)
    num_workers = sum(group.get("replicas", group["minReplicas"]) for group in spec["workerGroupSpecs"])
    for budget in budgets.values():
        component = budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        if component == "worker":  # KubeRay's objects have no scale, of which Kubernetes could take a part
            assert isinstance(budget["spec"]["minAvailable"], int)
            assert budget["spec"]["minAvailable"] < max(num_workers, 1)
        else:
            assert component == "gateway"
            assert budget["spec"]["maxUnavailable"] == 1
    assert not budgets or len(budgets) == 2


@needs_helm
def test_several_gateways_have_settings_volumes_and_addresses_of_their_own() -> None:
    documents = everything()
    deployments = of_kind(documents, "Deployment")
    assert (
        deployments.keys() == {"rollserve-one", "rollserve-two"} == of_kind(documents, "PersistentVolumeClaim").keys()
    )
    one, two = (gateway_settings(each) for each in deployments.values())
    assert (one["env"], one["sampler_name"], one["ray_namespace"]) == ("CartPole-v1", "one", "one")
    assert (two["env"], two["sampler_name"], two["ray_namespace"]) == ("Acrobot-v1", "other", "team")
    assert two["max_workers"] == "32"
    for name, deployment in deployments.items():
        volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
        assert volumes["state"]["persistentVolumeClaim"]["claimName"] == name
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        chosen = of_kind(documents, "Service")[name]["spec"]["selector"]
        assert chosen.items() <= labels.items()
        assert chosen["gateway"] == name.removeprefix("rollserve-")


@needs_helm
def test_next_gateway_stands_by_unless_its_volume_is_for_one_node() -> None:
    def strategies(documents: list[Document]) -> set[str]:
        return {each["spec"]["strategy"]["type"] for each in of_kind(documents, "Deployment").values()}

    assert strategies(the_manifest()) == {"Recreate"}
    assert strategies(everything()) == strategies(rendered("bare")) == {"RollingUpdate"}
    assert all(
        each["spec"]["accessModes"] == ["ReadWriteMany"]
        for each in of_kind(everything(), "PersistentVolumeClaim").values()
    )


@needs_helm
def test_scaled_cluster_leaves_the_number_of_pods_to_kuberay() -> None:
    documents = everything()
    spec = cluster_of(documents)
    assert spec["enableInTreeAutoscaling"]
    assert all("replicas" not in group for group in spec["workerGroupSpecs"])
    variables = {each["name"] for each in spec["autoscalerOptions"]["env"]}
    assert {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} <= variables
    ports = of_kind(documents, "NetworkPolicy")["rollserve-head"]["spec"]["egress"][0]["ports"]
    assert {each["port"] for each in ports} == {443, 6443, 6380}  # of the API server, and of Redis


@needs_helm
def test_group_with_gpus_reserves_them() -> None:
    _, group = cluster_of(everything())["workerGroupSpecs"]
    spec = group["template"]["spec"]
    (container,) = spec["containers"]
    assert group["rayStartParams"]["num-gpus"] == "2"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert container["image"] == "rollserve-server:1.2.3-gpu"
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"


@needs_helm
def test_certificates_are_what_gateways_mount_and_name_their_services() -> None:
    documents = everything()
    certificates = of_kind(documents, "Certificate")
    served = certificates["rollserve-tls"]["spec"]
    services = of_kind(documents, "Service")
    assert {"rl.example.org", *services, *(f"{name}.team.svc" for name in services)} <= set(served["dnsNames"])
    for deployment in of_kind(documents, "Deployment").values():
        volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
        assert volumes["tls"]["secret"]["secretName"] == served["secretName"]
    issuers = of_kind(documents, "Issuer")
    assert all(each["spec"]["issuerRef"]["name"] in issuers for each in certificates.values())
    assert certificates["rollserve-client"]["spec"]["usages"] == ["digital signature", "client auth"]


@needs_helm
def test_prometheus_has_the_alerts_of_compose_and_finds_the_metrics() -> None:
    documents = everything()
    (rule,) = of_kind(documents, "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    (monitor,) = of_kind(documents, "ServiceMonitor").values()
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (service,) = (
        each for each in of_kind(documents, "Service").values() if wanted.items() <= each["metadata"]["labels"].items()
    )
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "rollserve"  # the job of alerts
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
