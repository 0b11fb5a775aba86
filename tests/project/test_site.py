"""The site: it is built without a warning, so that no link is broken and no public name is undocumented."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollserve_server.settings import Settings

ROOT = Path(__file__).parents[2]


def test_options_page_describes_each_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    pages = dict(importlib.import_module("server_pages").server_pages())
    described = re.findall(r"`ROLLSERVE_(\w+)` \| [^|]* \| [^|]+ \|$", pages["server-options.md"], re.MULTILINE)
    names = [field.name.upper() for field in Settings.flat_fields() if field.info.description]
    assert described == names


@pytest.mark.slow  # a minute of processor time
@pytest.mark.timeout(1200)
def test_site_is_built_without_warnings(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    command = [
        *(sys.executable, "-m", "sphinx"),
        *("--quiet", "--fail-on-warning", "--keep-going", "-c", "docs/site", "-d", tmp_path / "doctrees"),
        *(tmp_path / "pages", tmp_path / "site"),
    ]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    front = (tmp_path / "site" / "index.html").read_text()
    assert "obtain_samples" in front
    assert "EpisodeBatch" in (tmp_path / "site" / "reference" / "python" / "batches.html").read_text()
    assert "ObtainSamples" in (tmp_path / "site" / "reference" / "protos" / "sampler_service.html").read_text()


@pytest.mark.parametrize(
    ("page", "file"), [("index", "README.md"), ("tutorials/team", "docs/tutorials/team.md"), ("reference/errors", None)]
)
def test_page_links_its_editor_when_the_repository_is_known(page: str, file: str | None) -> None:
    spec = importlib.util.spec_from_file_location("conf", ROOT / "docs" / "site" / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    for urls in ({}, {"Repository": "https://forge.example/rollserve"}):
        context: dict[str, str] = {}
        conf.__dict__["_URLS"] = urls
        conf._link_to_editor(None, page, "page.html", context, None)
        link = f"https://forge.example/rollserve/edit/main/{file}"
        assert context == ({"theme_source_edit_link": link} if urls and file else {})


def test_published_site_lists_releases_newest_first(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "pages").mkdir()
    front, names = tmp_path / "pages" / "index.html", tmp_path / "pages" / "versions.json"
    for version, listed in (
        ("main", ["main"]),
        ("0.9.0", ["0.9.0", "main"]),
        ("0.10.0", ["0.10.0", "0.9.0", "main"]),
        ("main", ["0.10.0", "0.9.0", "main"]),
    ):
        (tmp_path / "site" / f"of-{version}.html").touch()
        command = [sys.executable, ROOT / ".ci" / "publish_site.py", tmp_path / "site", tmp_path / "pages", version]
        subprocess.run(command, check=True)
        assert json.loads(names.read_text()) == listed
        assert f'"0; url={listed[0]}/"' in front.read_text()
        assert (tmp_path / "pages" / version / f"of-{version}.html").exists()
    refused = subprocess.run([*command[:-1], "../0.1.0"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "version: expected main or numbers with dots between them, got ../0.1.0" in refused.stderr
