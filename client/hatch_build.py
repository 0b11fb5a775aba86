"""Build hook that adds the `.proto` files to the distribution, beside the classes that are generated from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtosHook(BuildHookInterface[Any]):
    """Adds `rollserve/v1/*.proto`, so that the folder of installed packages is an include path for `protoc`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files for the builder; an editable installation has them in the repository."""
        if version == "editable":
            return
        root = Path(self.root).resolve()
        # A source distribution has its own copy; in the repository, the protos lie beside the client.
        protos = next(folder for folder in (root / "protos", root.parent / "protos") if folder.is_dir())
        target = "protos/rollserve/v1" if self.target_name == "sdist" else "rollserve/v1"
        files = sorted((protos / "rollserve" / "v1").glob("*.proto"))
        build_data["force_include"] |= {str(path): f"{target}/{path.name}" for path in files}
