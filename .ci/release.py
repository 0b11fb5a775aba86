"""Make a release: change the version everywhere, and build all artefacts into `dist`. Nothing is published.

release.py VERSION [PART]…    # `make release VERSION=0.3.0`

Parts are python, typescript, java, cpp, protos, chart, sbom and images.

The commands that publish are printed at the end, for a maintainer to run.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_DIST = _ROOT / "dist"
_DISTRIBUTIONS = ("client", "client/hosts/python", "server", "conformance")
_PLACES = {
    "client/pyproject.toml": r'^version = "(.*)"$',
    "server/pyproject.toml": r'^version = "(.*)"$|"rollserve(?:-env-host)?==(.*)"',
    "client/hosts/python/pyproject.toml": r'^version = "(.*)"$',
    "conformance/pyproject.toml": r'^version = "(.*)"$|"rollserve(?:-server)?==(.*)"',
    "server/src/rollserve_server/__init__.py": r'^__version__ = "(.*)"$',
    "client/cpp/CMakeLists.txt": r"^project\(rollserve VERSION (\S+) ",
    "client/cpp/packaging/vcpkg/rollserve/vcpkg.json": r'^  "version": "(.*)",$',
    "client/java/pom.xml": r"^  <version>(.*)</version>$",
    "client/java/README.md": r"rollserve-client:([\d.]+)`",
    "client/typescript/package.json": r'^  "version": "(.*)",$',
    "client/typescript/package-lock.json": r'\A\{\n  "name": "rollserve",\n  "version": "(.*)",$'
    r'|^    "": \{\n      "name": "rollserve",\n      "version": "(.*)",$',
    "CITATION.cff": r"^version: (.*)$",
    "Dockerfile": r"org\.opencontainers\.image\.version=(\S+) ",
    "docker-compose.yml": r"image: rollserve-\w+:\$\{ROLLSERVE_VERSION:-(\S+)\}$",
    "deploy/helm/Chart.yaml": r"^(?:version|appVersion): (\S+)$",
    "deploy/kubernetes/rollserve.yaml": r'image: "rollserve-server:(\S+)"$',
    "docs/deployment.md": r"rollserve-server:([\d.]+)",
    "docs/python-agents.md": r"rollserve-(?:server|worker):([\d.]+)",
    "docs/testing.md": r"rollserve-server:([\d.]+)",
}
"""Files that have the version, and a pattern whose groups are all places of it."""


def present_versions() -> set[str]:
    """Return the versions that stand in the files: one, unless somebody has changed it by hand."""
    found = set()
    for name, pattern in _PLACES.items():
        groups = re.findall(pattern, (_ROOT / name).read_text(), re.MULTILINE)
        if not groups:
            sys.exit(f"{name}: expected a version, got none")
        found |= {text for each in groups for text in ([each] if isinstance(each, str) else each) if text}
    return found


def set_version(version: str) -> None:
    """Write a version to all places of it, and the date to the changelog's section of the release."""
    for name, pattern in _PLACES.items():
        path = _ROOT / name
        path.write_text(
            re.sub(pattern, lambda match: _with_version(match, version), path.read_text(), flags=re.MULTILINE)
        )
    changelog = _ROOT / "CHANGELOG.md"
    text = changelog.read_text()
    today = datetime.date.today().isoformat()
    text = re.sub(rf"^## {re.escape(version)}, not released yet$", f"## {version}, {today}", text, flags=re.MULTILINE)
    if not re.search(rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d$", text, re.MULTILINE):
        sys.exit(f"CHANGELOG.md: expected a section `## {version}, not released yet`, or one with a date, got none")
    changelog.write_text(text)


def _with_version(match: re.Match[str], version: str) -> str:
    """Return the text of a match, with the version in place of its group."""
    group = next(number for number in range(1, len(match.groups()) + 1) if match[number] is not None)
    start, stop = (position - match.start() for position in match.span(group))
    return match[0][:start] + version + match[0][stop:]


def _build_python(_: str) -> None:
    for name in _DISTRIBUTIONS:
        command = [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "--directory",
            _DIST,
            "--target",
            "sdist",
            "--target",
            "wheel",
        ]
        _run(*command, folder=_ROOT / name)


def _build_typescript(_: str) -> None:
    _run("make", "--silent", "setup", "build", folder=_ROOT / "client" / "typescript")
    _run("npm", "pack", "--silent", "--pack-destination", _DIST, folder=_ROOT / "client" / "typescript")


def _build_java(version: str) -> None:
    folder, name = _ROOT / "client" / "java", f"rollserve-client-{version}"
    _run("make", "--silent", "package", folder=folder)
    for kind in ("", "-sources", "-javadoc"):
        shutil.copy(folder / ".build" / f"{name}{kind}.jar", _DIST)
    shutil.copy(folder / "pom.xml", _DIST / f"{name}.pom")


def _build_cpp(version: str) -> None:
    """Pack the sources, with the protos that they are built from."""
    _pack(f"rollserve-cpp-{version}", "client/cpp", "protos", "LICENSE")


def _build_protos(version: str) -> None:
    """Pack the module that `buf push` uploads."""
    _pack(f"rollserve-protos-{version}", "protos/rollserve", "buf.yaml", "LICENSE")


def _build_chart(version: str) -> None:
    """Pack the chart, and name it unlike the package for npm."""
    helm, folder = Path(sys.executable).with_name("helm"), _DIST / "chart"
    _run(helm, "package", "--destination", folder, "deploy/helm", folder=_ROOT)
    (folder / f"rollserve-{version}.tgz").rename(_DIST / f"rollserve-chart-{version}.tgz")
    folder.rmdir()


def _build_sbom(version: str) -> None:
    _run("make", "--silent", "sbom", folder=_ROOT)
    shutil.copy(_ROOT / "sbom.json", _DIST / f"rollserve-{version}-sbom.json")


def _build_images(version: str) -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:  # noqa: S607
        print("no images: no docker answers on this machine")
        return
    for target in ("server", "worker", "trainer"):
        image = f"rollserve-{target}:{version}"
        _run("docker", "build", "--target", target, "--tag", image, ".", folder=_ROOT)
        _run("docker", "save", "--output", _DIST / f"rollserve-{target}-{version}.tar", image, folder=_ROOT)


_PARTS: Mapping[str, Callable[[str], None]] = {
    "python": _build_python,
    "typescript": _build_typescript,
    "java": _build_java,
    "cpp": _build_cpp,
    "protos": _build_protos,
    "chart": _build_chart,
    "sbom": _build_sbom,
    "images": _build_images,
}
_PUBLISHING = """
Nothing is published. These commands do it, from this folder, after `git commit` of the version:

  git tag v{version} client/go/v{version} && git push origin v{version} client/go/v{version}
  twine upload dist/*.whl dist/rollserve-{version}.tar.gz dist/rollserve_*-{version}.tar.gz
  npm publish dist/rollserve-{version}.tgz
  mvn --file client/java -Prelease,publish deploy
  buf push --label v{version}
  export REGISTRY=…; helm push dist/rollserve-chart-{version}.tgz oci://$REGISTRY
  build() {{
    docker buildx build --push --sbom=true --provenance=mode=max --build-arg COMMIT=$(git rev-parse HEAD) "$@" .; }}
  for image in server worker trainer; do
    build --platform linux/amd64,linux/arm64 --target $image --tag $REGISTRY/rollserve-$image:{version}; done
  for image in server worker; do
    build --platform linux/amd64 --target $image-gpu --tag $REGISTRY/rollserve-$image:{version}-gpu; done
  gh release create v{version} dist/* --notes-file CHANGELOG.md
"""


def main(version: str, parts: list[str]) -> None:
    """Change the version, and build some parts, or all."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"VERSION: expected three numbers with dots between them, got {version!r}")
    unknown = set(parts) - _PARTS.keys()
    if unknown:
        sys.exit(f"parts: expected some of {', '.join(_PARTS)}, got {', '.join(sorted(unknown))}")
    present = present_versions()
    if len(present) != 1:
        sys.exit(f"expected one version in {', '.join(_PLACES)}, got {', '.join(sorted(present))}")
    set_version(version)
    shutil.rmtree(_DIST, ignore_errors=True)
    _DIST.mkdir()
    for part in parts or _PARTS:
        print(f"== {part}", flush=True)
        _PARTS[part](version)
    files = sorted(_DIST.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    (_DIST / "SHA256SUMS").write_text("\n".join([*sums, ""]))
    print(*(f"{path.stat().st_size:>12,}  dist/{path.name}" for path in files), sep="\n")
    print(_PUBLISHING.format(version=version))


def _pack(name: str, *paths: str) -> None:
    """Pack the files of the repository below some paths, as they are in the work tree, into `dist/NAME.tar.gz`."""
    command = ["git", "ls-files", "-z", *paths]
    names = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603
    with tarfile.open(_DIST / f"{name}.tar.gz", "w:gz") as archive:
        for path in filter(None, names.split("\0")):
            archive.add(_ROOT / path, f"{name}/{path}")


def _run(*command: object, folder: Path) -> None:
    status = subprocess.run([str(each) for each in command], cwd=folder).returncode  # noqa: S603  # its own commands
    if status:
        sys.exit(f"release: {' '.join(map(str, command))} ended with status {status}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: release.py VERSION [PART]…")
    main(sys.argv[1], sys.argv[2:])
