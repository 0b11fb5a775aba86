"""Promises of the packages: public names, dependencies, layers and versions."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SOURCES = {
    "rollserve": "client/src/rollserve",
    "rollserve_conformance": "conformance/src/rollserve_conformance",
    "rollserve_server": "server/src/rollserve_server",
    "rollserve_wire": "client/src/rollserve_wire",
}


def modules() -> dict[str, Path]:
    """Return the path of each module by its name; packages go by their `__init__.py`."""
    found = {}
    for package, folder in SOURCES.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = [package, *path.relative_to(ROOT / folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


CROWDED = (".agents", ".envs", ".gateway", ".pool", ".sampling")
ROOMS: dict[str, list[list[str]]] = tomllib.loads(Path(__file__).with_name("rooms.toml").read_text())
"""Rooms of each row, from the top down, by package."""
MODULES = modules()
PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere in it: at run time, late, or for type checking."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return what each module imports. Not at import: each process of `make test` imports this file."""
    return {name: imports_of(path) for name, path in MODULES.items()}


def imports_within(package: str) -> Iterator[tuple[str, str, str]]:
    """Yield each import between children of a package: both children, and the importing module."""
    prefix = f"{package}."
    for name, others in imports().items():
        for other in others:
            if name.startswith(prefix) and other.startswith(prefix):
                room, other_room = (each[len(prefix) :].split(".")[0] for each in (name, other))
                if room != other_room:
                    yield room, other_room, name


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
    assert (
        loaded & {"ray", "gymnasium", "rollserve_server", "pydantic", "click", "rich", "torch", "jax", "pandas"}
        == set()
    )


def test_client_loads_learning_bridges_and_files_when_they_are_first_used() -> None:
    code = "import sys, rollserve; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    late = ("rollserve._formats", "rollserve.bridges", "rollserve.data", "rollserve.learning", "rollserve_wire.replays")
    assert "rollserve.episode_batch" in loaded
    assert [name for name in loaded if name.startswith(late)] == []


def test_rows_of_rooms_name_every_module() -> None:
    of_the_server = [f"rollserve_server{name}" for name in ("", *CROWDED)]
    assert sorted(ROOMS) == ["rollserve", "rollserve_conformance", *of_the_server, "rollserve_wire"]
    for package, rows in ROOMS.items():
        children = {name[len(package) + 1 :].split(".")[0] for name in MODULES if name.startswith(f"{package}.")}
        assert sorted(room for row in rows for room in row) == sorted(children), package


def test_rooms_import_rooms_below_their_own() -> None:
    for package, rows in ROOMS.items():
        floors = {room: floor for floor, row in enumerate(rows) for room in row}
        for room, other, where in imports_within(package):
            assert floors[room] < floors[other], f"{where} imports {other} of {package}"


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_no_import_cycle(package: str) -> None:
    imported: dict[str, set[str]] = {}
    for room, other, _ in imports_within(package):
        imported.setdefault(room, set()).add(other)
    TopologicalSorter(imported).prepare()  # raises CycleError


def test_packages_of_the_server_are_imported_by_their_faces() -> None:
    inside = {
        (name, other)
        for name, others in imports().items()
        for other in others
        if name.startswith("rollserve_server.")
        and other.startswith("rollserve_server.")
        and other.count(".") > 1
        and name.split(".")[:2] != other.split(".")[:2]
    }
    assert inside == {
        ("rollserve_server.__main__", "rollserve_server.cli.main"),
        ("rollserve_server.testing.serve", "rollserve_server.cli.main"),
        ("rollserve_server.serving.build", "rollserve_server.pool.backends.ray.backend"),  # only where Ray is used
    }


def test_ray_and_grpc_are_imported_in_their_rooms_alone() -> None:
    server = {name: others for name, others in imports().items() if name.startswith("rollserve_server")}
    for name, others in server.items():
        tops = {other.partition(".")[0] for other in others}
        assert "ray" not in tops or name.startswith("rollserve_server.pool.backends.ray."), name
        assert tops.isdisjoint({"grpc", "grpc_health", "grpc_reflection"}) or name.startswith(
            (
                "rollserve_server.cli",  # with its list of ciphers
                "rollserve_server.gateway.",
                "rollserve_server.testing.faults",
                "rollserve_server.testing.rpcs",
            )
        )


def test_server_imports_the_client_where_it_reads_and_writes_episodes() -> None:
    users = {
        name
        for name, others in imports().items()
        if name.startswith("rollserve_server.") and any(other.partition(".")[0] == "rollserve" for other in others)
    }
    assert users == {
        "rollserve_server.datasets.reading",
        "rollserve_server.datasets.writing",
        "rollserve_server.envs.probing.rendering",
        "rollserve_server.gateway.messages.dataset_requests",
        "rollserve_server.gateway.messages.videos",
        "rollserve_server.testing.faults",
    }


def test_workers_load_neither_grpc_nor_the_client() -> None:
    code = "import sys, rollserve_server.pool.backends.ray.worker; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = {name.partition(".")[0] for name in shown.split()}
    assert {"rollserve_server", "rollserve_wire", "numpy"} <= loaded
    assert {"rollserve", "grpc"}.isdisjoint(loaded)


def test_ordinary_servers_import_no_faults() -> None:
    for_tests = ("rollserve_server.testing", "rollserve_conformance")
    ordinary = {name: others for name, others in imports().items() if not name.startswith(for_tests)}
    assert [name for name, others in ordinary.items() if any(other.startswith(for_tests) for other in others)] == []


def test_kit_imports_what_test_programs_do() -> None:
    kit = (others for name, others in imports().items() if name.startswith("rollserve_conformance"))
    assert {other for other in set().union(*kit) if other.startswith("rollserve_server")} == {
        "rollserve_server.agents",
        "rollserve_server.local",
        "rollserve_server.testing",
        "rollserve_server.testing.rpcs",
        "rollserve_server.testing.serve",
    }


def test_paths_in_the_architecture_exist() -> None:
    paths = re.findall(r"(?<![\w/])[\w/]+(?:\.py|\.proto|/(?=[`,; ]))", ARCHITECTURE)
    folders = [ROOT, ROOT / "client/src", *(ROOT / folder for folder in SOURCES.values())]
    assert len(paths) > 60
    assert [path for path in paths if not any((folder / path).exists() for folder in folders)] == []


@pytest.mark.parametrize("from_source", [False, True], ids=["repository", "source distribution"])
def test_client_has_the_protos_beside_their_classes(tmp_path: Path, from_source: bool) -> None:
    root = ROOT / "client"
    if from_source:
        (archive,) = SdistBuilder(str(root)).build(directory=str(tmp_path))
        with tarfile.open(archive) as source:
            source.extractall(tmp_path, filter="data")
        (root,) = tmp_path.glob("*/")
    (wheel,) = WheelBuilder(str(root)).build(directory=str(tmp_path / "wheel"), versions=["standard"])
    with zipfile.ZipFile(wheel) as packed:
        contents = {name: packed.read(name) for name in packed.namelist()}
    protos = {path.name: path.read_bytes() for path in (ROOT / "protos/rollserve/v1").glob("*.proto")}
    assert {name: contents[f"rollserve/v1/{name}"] for name in protos} == protos
    assert all(f"rollserve_wire/v1/{name.removesuffix('.proto')}_pb2.py" in contents for name in protos)


def test_kit_has_its_recordings(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT / "conformance")).build(directory=str(tmp_path), versions=["standard"])
    source = ROOT / SOURCES["rollserve_conformance"]
    with zipfile.ZipFile(wheel) as packed:
        contents = set(packed.namelist())
    assert {str(path.relative_to(source.parent)) for path in (source / "golden").iterdir()} <= contents


def test_errors_without_a_reason_of_their_class_name_one() -> None:
    """Clients would see the reason INTERNAL."""
    bare = {"NotFoundError", "NotAllowedError", "UnauthenticatedError", "NotReadyError", "OverLimitError"}
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and not any(keyword.arg == "reason" for keyword in node.keywords):
                name = ast.unparse(node.func).removesuffix(".of")
                assert name not in bare, f"{path}:{node.lineno}: {name} without a reason"
