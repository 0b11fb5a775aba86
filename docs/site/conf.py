"""Settings of the site, which `make docs` builds, and its pages, which are written before Sphinx looks for them."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
sys.path.insert(0, str(_HERE))

from proto_pages import proto_pages  # noqa: E402  # of the folder that was just added
from python_pages import python_pages, without_markup  # noqa: E402
from repository_pages import repository_pages  # noqa: E402
from server_pages import server_pages  # noqa: E402

import rollserve  # noqa: E402

project = "Rollserve"
version = release = rollserve.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
default_role = "code"
suppress_warnings = ["misc.highlighting_failure"]  # code with … in it

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_class_signature = "separated"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Keys", "params_style")]

html_theme = "furo"
html_title = f"Rollserve {version}"
templates_path = ["templates"]
html_static_path, html_css_files = ["static"], ["rollserve.css"]
_PARTS = ("brand", "versions", "search", "scroll-start", "navigation", "scroll-end")
html_sidebars = {"**": [f"sidebar/{part}.html" for part in _PARTS]}
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text, copybutton_prompt_is_regexp = r">>> |\.\.\. |\$ ", True

_URLS = tomllib.loads((_ROOT / "client" / "pyproject.toml").read_text())["project"].get("urls", {})
"""Addresses of the project by name."""
_PUBLISHED = "https://rollserve.github.io/rollserve/main/"
"""Address of the published site of the newest commit, with the references of the other clients."""


def setup(app: Any) -> None:
    """Write the pages that have changed, remove others, and keep the stars of docstrings."""
    pages = Path(app.srcdir)
    written = {pages / name: text for name, text in _pages()}
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in set(pages.rglob("*.md")) - written.keys():
        path.unlink()
    shutil.copytree(_ROOT / "docs" / "images", pages / "images", dirs_exist_ok=True)
    app.connect("autodoc-process-docstring", without_markup, priority=900)  # after napoleon
    app.connect("html-page-context", _link_to_editor)
    app.connect("html-page-context", _link_to_built_references)


def _link_to_editor(_app: Any, page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Let a page of the repository link to its file, if the project has a `Repository` among its addresses."""
    file = "README.md" if page == "index" else f"docs/{page}.md"
    if "Repository" in _URLS and (_ROOT / file).exists():
        context["theme_source_edit_link"] = f"{_URLS['Repository']}/edit/main/{file}"


def _link_to_built_references(app: Any, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Link the references of other clients that `make docs-clients` has built beside this site, if it has."""
    for index in Path(app.outdir).glob("reference/*/index.html"):
        path = f"reference/{index.parent.name}/"
        if _PUBLISHED + path in context.get("body", ""):
            context["body"] = context["body"].replace(_PUBLISHED + path, context["content_root"] + path)


def _pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each page."""
    navigation = (_HERE / "navigation.md").read_text()
    for name, text in repository_pages(_ROOT):
        yield name, text + navigation if name == "index.md" else text
    proto_folder = _ROOT / "protos"
    for folder, pages in (("python/", python_pages()), ("protos/", proto_pages(proto_folder)), ("", server_pages())):
        for name, text in pages:
            yield f"reference/{folder}{name}", text
