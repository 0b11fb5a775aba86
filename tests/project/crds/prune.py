"""Print what a test needs of a CustomResourceDefinition: the schema of one version, strict, and without descriptions.

python prune.py FILE.yaml VERSION > NAME.json

Pods within it are left out: tests check them against the schema of Kubernetes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml


def pruned(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that refuses unknown fields, as `kubectl apply` does."""
    if "containers" in schema.get("properties", {}).get("spec", {}).get("properties", {}):
        return {"type": "object"}
    kept = {key: schema[key] for key in ("type", "enum", "pattern", "required", "anyOf") if key in schema}
    if "(?" in kept.get("pattern", ""):  # in the dialect of Go
        del kept["pattern"]
    if "properties" in schema:
        kept["properties"] = {name: pruned(each) for name, each in schema["properties"].items()}
        kept["additionalProperties"] = False
    if "items" in schema:
        kept["items"] = pruned(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = pruned(schema["additionalProperties"])
    return kept


def main(file: str, version: str) -> None:
    """Print the schema of a version, with what all objects have."""
    definition = yaml.safe_load(Path(file).read_text())
    (found,) = (each for each in definition["spec"]["versions"] if each["name"] == version)
    schema = found["schema"]["openAPIV3Schema"]
    schema["properties"].pop("status", None)
    schema = pruned(schema)
    schema["properties"]["metadata"] = {"type": "object"}
    sys.stdout.write(json.dumps(schema, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
