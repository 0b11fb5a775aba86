"""The three distributions as they are installed: their metadata, and wheels alone in an environment of their own."""

from __future__ import annotations

import email
import hashlib
import re
import shutil
import subprocess
import sys
import textwrap
import xml.etree.ElementTree
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import rollserve_server

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("client", "client/hosts/python", "server", "conformance")
PYTHONS = ("3.11", "3.12", "3.13")
README_EXAMPLE = """
    import rollserve
    from rollserve_server.local import local_server

    with local_server("--env", "CartPole-v1", "--workers", "2") as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        batch = sampler.obtain_samples(1_000, seed=7)
    assert batch.num_steps >= 1_000
    assert batch.observations.shape == (batch.num_steps, 4)
"""
FIXTURE_EXAMPLE = """
    import rollserve

    def test_fixture(rollserve_server):
        with rollserve.connect(rollserve_server.address) as sampler:
            sampler.update_env("CartPole-v1")
            sampler.update_agent(rollserve.RandomAgent())
            assert sampler.obtain_samples(100).num_steps >= 100
"""


def wheel_of(distribution: str, folder: Path) -> Path:
    (wheel,) = WheelBuilder(str(ROOT / distribution)).build(directory=str(folder), versions=["standard"])
    return Path(wheel)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_metadata_is_what_an_index_shows(distribution: str, tmp_path: Path) -> None:
    wheel = wheel_of(distribution, tmp_path)
    with zipfile.ZipFile(wheel) as packed:
        (folder,) = {name.split("/")[0] for name in packed.namelist() if ".dist-info/" in name}
        metadata = email.message_from_bytes(packed.read(f"{folder}/METADATA"))
        license_text = packed.read(f"{folder}/licenses/LICENSE").decode()
        assert any(name.endswith("/py.typed") for name in packed.namelist())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert license_text == (ROOT / "LICENSE").read_text()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / distribution / "README.md").read_text()
    labels = {url.split(",")[0] for url in metadata.get_all("Project-URL", [])}
    assert labels == {"Homepage", "Documentation", "Changelog", "Issues", "Repository"}
    named = [each.rpartition(" ")[2] for each in metadata.get_all("Classifier", []) if "Python :: 3." in each]
    assert named[-len(PYTHONS) :] == list(PYTHONS)
    (source,) = SdistBuilder(str(ROOT / distribution)).build(directory=str(tmp_path))
    assert Path(source).stat().st_size < 2_000_000  # sources alone, without what tests and builds leave


@pytest.mark.parametrize("client", ["go", "typescript"])
def test_clients_bring_the_license(client: str) -> None:
    """Modules of Go and packages of npm have no files from outside their folder."""
    assert (ROOT / "client" / client / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_pom_has_what_maven_central_asks_for() -> None:
    project = xml.etree.ElementTree.parse(ROOT / "client" / "java" / "pom.xml").getroot()
    xmlns = {"": "http://maven.apache.org/POM/4.0.0"}
    wanted = ["name", "description", "url", "developers/developer/name"]
    wanted += ["licenses/license/name", "licenses/license/url"]
    wanted += ["scm/connection", "scm/developerConnection", "scm/url"]
    assert [path for path in wanted if not project.findtext(path, namespaces=xmlns)] == []
    # Those who depend on the package do not see its profiles, which may only replace versions.
    properties = {each.tag.rpartition("}")[2] for each in project.findall("properties/*", xmlns)}
    versions = {each.text or "" for each in project.findall("dependencies/dependency/version", xmlns)}
    assert {version.strip("${}") for version in versions} <= properties


@pytest.mark.slow  # installs some hundred megabytes for each Python
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", PYTHONS)
def test_wheels_alone_run_a_server_and_the_fixture(version: str, tmp_path: Path) -> None:
    python = sys.executable if version == "{}.{}".format(*sys.version_info) else shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"this machine has no Python {version}")
    wheels = [wheel_of(distribution, tmp_path / "wheels") for distribution in DISTRIBUTIONS]
    own = tmp_path / "environment" / "bin" / "python"
    subprocess.run([python, "-m", "venv", tmp_path / "environment"], check=True)
    constraints = ROOT / "constraints.txt"
    subprocess.run([own, "-m", "pip", "install", "--quiet", "--constraint", constraints, "pytest", *wheels], check=True)
    subprocess.run(
        [own, "-W", "error::DeprecationWarning", "-c", textwrap.dedent(README_EXAMPLE)], cwd=tmp_path, check=True
    )
    (tmp_path / "test_fixture.py").write_text(textwrap.dedent(FIXTURE_EXAMPLE))
    subprocess.run([own, "-m", "pytest", "-q", "test_fixture.py"], cwd=tmp_path, check=True)
    for command in ("rollserve", "rollserve-env-host", "rollserve-server", "rollserve-conformance"):
        shown = subprocess.run([own.parent / command, "--help"], capture_output=True, text=True, check=True).stdout
        assert "usage" in shown.lower()


def release(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ".ci/release.py", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the repository, with the changes that are not committed."""
    root = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, root], check=True)
    names = subprocess.run(
        ["git", "ls-files", "--modified", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    for name in names.stdout.splitlines():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


def test_release_has_one_version_everywhere(clone: Path) -> None:
    changelog = clone / "CHANGELOG.md"
    present = rollserve_server.__version__
    versions = re.findall(r"^## ([\d.]+), (?:not released yet|\d{4}-\d\d-\d\d)$", changelog.read_text(), re.MULTILINE)
    assert present in versions[:2]  # in front of it may be a section of what is not released yet
    refused = release(clone, "9.8.7", "python")
    assert (refused.returncode, "CHANGELOG.md: expected a section" in refused.stderr) == (1, True)
    changelog.write_text(
        changelog.read_text().replace(f"## {versions[0]}, ", "## 9.8.7, not released yet\n\n## 0.0.1, ", 1)
    )
    shown = release(clone, "9.8.7", "python", "cpp", "protos")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^## 9\.8\.7, \d{4}-\d\d-\d\d$", changelog.read_text(), re.MULTILINE)
    names = ("rollserve", "rollserve_env_host", "rollserve_server", "rollserve_conformance")
    expected = {f"{name}-9.8.7{end}" for name in names for end in ("-py3-none-any.whl", ".tar.gz")}
    expected |= {"rollserve-cpp-9.8.7.tar.gz", "rollserve-protos-9.8.7.tar.gz", "SHA256SUMS"}
    assert {path.name for path in (clone / "dist").iterdir()} == expected
    sums = (clone / "dist" / "SHA256SUMS").read_text().split()
    for digest, name in zip(sums[::2], sums[1::2], strict=True):
        assert hashlib.sha256((clone / "dist" / name).read_bytes()).hexdigest() == digest
    changed = subprocess.run(["git", "diff", "--name-only"], cwd=clone, capture_output=True, text=True, check=True)
    for name in changed.stdout.splitlines():
        left = [
            line for line in (clone / name).read_text().splitlines() if re.search(rf"rollserve.*\b{present}\b", line)
        ]
        assert name == "CHANGELOG.md" or not left, f"{name}: {left}"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("0.3",), "VERSION: expected three numbers with dots between them, got '0.3'"),
        (("0.3.0", "wheels"), "parts: expected some of python, .*, got wheels"),
    ],
)
def test_release_refuses_by_name(arguments: tuple[str, ...], text: str) -> None:
    refused = release(ROOT, *arguments)
    assert refused.returncode == 1
    assert re.search(text, refused.stderr)
