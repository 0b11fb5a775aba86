"""Write a bill of materials, in CycloneDX's JSON, of all distributions and what they depend on.

sbom.py ENVIRONMENT FILE    # ENVIRONMENT: the Python of a virtual environment that has them
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_DISTRIBUTIONS = ("rollserve", "rollserve-env-host", "rollserve-server", "rollserve-conformance")


def main(environment: str, file: Path) -> None:
    """Describe an environment, and keep what the distributions need of it."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-format", "JSON", environment]
    document: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)  # noqa: S603
    references = {each["name"]: each["bom-ref"] for each in document["components"]}
    missing = [name for name in _DISTRIBUTIONS if name not in references]
    if missing:
        sys.exit(f"sbom: {environment} lacks {', '.join(missing)}")
    needs = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    kept: set[str] = set()
    waiting = [references[name] for name in _DISTRIBUTIONS]
    while waiting:
        reference = waiting.pop()
        if reference not in kept:
            kept.add(reference)
            waiting += needs.get(reference, [])
    document["components"] = [each for each in document["components"] if each["bom-ref"] in kept]
    document["dependencies"] = [each for each in document["dependencies"] if each["ref"] in kept]
    file.write_text(json.dumps(document, indent=2) + "\n")
    print(f"sbom: {len(kept)} components in {file}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
