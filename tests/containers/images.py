"""Images that the containers begin with, where no registry has them: made of Debian's packages."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from containers.engine import CommandError, Engine

__all__ = ["BASE", "PROMETHEUS", "prepare_base", "prepare_grafana", "prepare_prometheus", "prepare_redis"]

BASE = "python:3.11-slim-bookworm"
PROMETHEUS = "prom/prometheus:v2.55.1"
_GRAFANA = "grafana/grafana:11.4.0"
_REDIS = "redis:7.4.1"
_PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
_OWN_AUTHORITIES = Path("/usr/local/share/ca-certificates")


def prepare_base(engine: Engine) -> str:
    """Make the base of all images, if it is neither there nor can be pulled. Needs root and `debootstrap` then."""
    if engine.has_image(BASE):
        return "there, or pulled"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        engine.run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root))
        (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)
        (root / "usr/bin/python").symlink_to("python3")
        for authority in _OWN_AUTHORITIES.glob("*.crt"):  # of the machine's network
            shutil.copy(authority, root / "usr/local/share/ca-certificates")
        engine.run("chroot", str(root), "update-ca-certificates")
        for cache in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(root / cache, ignore_errors=True)
            (root / cache / "partial").mkdir(parents=True)
        archive = Path(folder, "root.tar")
        engine.run("tar", "-C", str(root), "-cf", str(archive), ".")
        changes = ('CMD ["python3"]', "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt")
        options = [part for change in changes for part in ("--change", change)]
        engine.docker("import", *options, str(archive), BASE, timeout=300.0)
    return "made by debootstrap"


def prepare_prometheus(engine: Engine) -> str:
    """Choose Prometheus' image: docker-compose.yml's, or one that is made of Debian's package."""
    lines = 'RUN install -d -o nobody /prometheus\nUSER nobody\nENTRYPOINT ["prometheus"]\n'
    return _prepare(engine, PROMETHEUS, "prometheus", "prometheus", lines)


def prepare_redis(engine: Engine) -> str:
    """Choose Redis' image, as Prometheus'."""
    return _prepare(engine, _REDIS, "redis", "redis-server")


def _prepare(engine: Engine, image: str, name: str, package: str, lines: str = "") -> str:
    """Choose an image of docker-compose.yml, or make one of Debian's package and further lines of a Dockerfile."""
    if engine.has_image(image):
        return "there, or pulled"
    own = f"rollserve-test-{name}"
    with tempfile.TemporaryDirectory() as folder:
        install = f"apt-get install --yes --no-install-recommends {package}"
        Path(folder, "Dockerfile").write_text(f"FROM {BASE}\nRUN apt-get update && {install}\n{lines}")
        engine.docker("build", "--tag", own, folder, timeout=600.0)
    engine.environment[f"{name.upper()}_IMAGE"] = own
    return "made of Debian's package"


def prepare_grafana(engine: Engine) -> bool:
    """Return whether Grafana's image can be had: Debian has no package of it."""
    try:
        return engine.has_image(_GRAFANA)
    except CommandError:
        return False
