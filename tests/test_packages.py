"""Promises of the packages: public names, dependencies, layers and versions."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rollserve

ROOT = Path(__file__).parents[1]
LAYERS = ["gateway", "pool", "sampling", "agents", "envs"]


def test_client_has_the_public_names() -> None:
    assert sorted(rollserve.__all__) == [
        "Account",
        "Agent",
        "AgentVersion",
        "AsyncSampleStream",
        "AsyncSampler",
        "CancelledError",
        "ConstantAgent",
        "Counters",
        "DeadlineError",
        "EnvChange",
        "EnvSpec",
        "EnvUpdate",
        "EpisodeBatch",
        "EpisodeBuffer",
        "EpisodeFailure",
        "Evaluation",
        "EvaluationOptions",
        "HeldAgent",
        "InvalidArgumentError",
        "LimitError",
        "MlpAgent",
        "OnnxAgent",
        "PickledAgent",
        "PopulationEvaluation",
        "PreconditionError",
        "PythonAgent",
        "RandomAgent",
        "Reason",
        "Reproducibility",
        "RollserveError",
        "SampleStream",
        "Sampler",
        "SamplerStatus",
        "SamplingOptions",
        "ServerError",
        "StepType",
        "StoppedError",
        "Summary",
        "Task",
        "UnavailableError",
        "Vectorization",
        "WorkerAccount",
        "WorkerStatus",
        "Wrapper",
        "aconnect",
        "connect",
        "give_back_memory",
        "hold_on_to_memory",
        "spaces",
    ]
    assert all(hasattr(rollserve, name) for name in rollserve.__all__)


def test_client_depends_on_numpy_grpcio_and_protobuf() -> None:
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    assert sorted(requirement.split(">")[0] for requirement in project["dependencies"]) == [
        "grpcio",
        "numpy",
        "protobuf",
    ]
    code = "import sys, rollserve, rollserve.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(shown.split()) - set(sys.stdlib_module_names)
    assert loaded & {"ray", "gymnasium", "rollserve_server", "pydantic", "click", "rich"} == set()


@pytest.mark.parametrize("layer", LAYERS)
def test_server_imports_point_down(layer: str) -> None:
    above = LAYERS[: LAYERS.index(layer)]
    for path in (ROOT / "server" / "src" / "rollserve_server" / layer).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in filter(None, names):
                assert not any(name.startswith(f"rollserve_server.{other}") for other in above), f"{path}: {name}"
                if name.partition(".")[0] == "ray":
                    assert path.parent.name == "ray", path
                if name.partition(".")[0] in ("grpc", "grpc_health", "grpc_reflection"):
                    assert layer == "gateway", path


def test_versions_of_packages_agree() -> None:
    versions = set()
    for name in ("client", "server"):
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        versions.add(project["version"])
    from rollserve_server import __version__

    assert versions == {__version__}
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
