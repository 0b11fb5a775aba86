"""Put a site that was built into a folder of published versions, and list them.

publish_site.py SITE FOLDER VERSION    # SITE becomes FOLDER/VERSION, a release such as 0.3.0, or main

`versions.json` has the newest release first, and `main` last; the front page leads to the first.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

_FRONT = """<!doctype html>
<meta charset="utf-8">
<title>Rollserve</title>
<meta http-equiv="refresh" content="0; url={version}/">
<a href="{version}/">Rollserve {version}</a>
"""


def publish(site: Path, folder: Path, version: str) -> None:
    """Replace a version of the published site, and write the list and the front page again.

    Args:
        site: folder that `make docs` has built.
        folder: where the versions are.
        version: name of the version, `main` or numbers with dots between them.
    """
    if not re.fullmatch(r"main|\d+(\.\d+)+", version):
        sys.exit(f"version: expected main or numbers with dots between them, got {version}")
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(site, folder / version)
    names = [path.name for path in folder.iterdir() if re.fullmatch(r"\d+(\.\d+)+", path.name)]
    names.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    names += ["main"] if (folder / "main").exists() else []
    (folder / "versions.json").write_text(json.dumps(names) + "\n")
    (folder / "index.html").write_text(_FRONT.format(version=names[0]))
    (folder / ".nojekyll").touch()  # folders whose names begin with _ are part of the site


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
