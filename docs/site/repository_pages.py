"""Pages of the site that are files of the repository: its documentation, and whatever that links to.

Links in the documentation are paths in the repository, where it is read, too. A file outside `docs` that they name
becomes a page with its text, and a folder one with its files; sources of generated pages have those.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["repository_pages"]

_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
"""The target of a link in Markdown, and its anchor."""
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".proto": "protobuf"}
_CLIENT = {
    "sampler": "sampler options progress rounds",
    "batches": "episode_batch multi_agent_batch account",
    "agents": "mlp_agent",
    "evaluation": "cross_play",
    "module-transforms": "transforms",
}
"""Modules of `rollserve`, by the page that has their names."""
_GENERATED = {
    Path("server/src/rollserve_server/settings"): "reference/server-options.md",
    Path("server/src/rollserve_server/metrics"): "reference/metrics.md",
    Path("client/src/rollserve"): "reference/python/index.md",
    Path("client/src/rollserve_wire/moments.py"): "reference/python/agents.md",
    **{
        Path(f"client/src/rollserve/{module}.py"): f"reference/python/{page}.md"
        for page, modules in _CLIENT.items()
        for module in modules.split()
    },
}
"""Pages that are generated from what a file or folder has."""
_PROTOS = Path("protos/rollserve/v1")
_SKIPPED = {"__pycache__", "build", "dist", "node_modules"}


def repository_pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the path on the site, and the text, of each page; the front page is README.md.

    Args:
        root: folder of the repository.
    """
    files = (path.relative_to(root) for path in sorted((root / "docs").rglob("*.md")))
    paths = [Path("README.md"), *(path for path in files if _is_in_navigation(path))]
    seen = set(paths)
    while paths:
        path = paths.pop(0)
        text, linked = _with_links(root, path, _text(root / path, path))
        yield _page_of(path), text
        paths += [each for each in linked if each not in seen]
        seen.update(linked)


def _text(file: Path, path: Path) -> str:
    """Return a page with a file's text, or with links to the files of a folder."""
    if path.suffix == ".md":
        return file.read_text() if _is_in_navigation(path) else f"---\norphan: true\n---\n\n{file.read_text()}"
    head = f"---\norphan: true\nnosearch: true\n---\n\n# {path}\n\n"
    if file.is_dir():
        files = [each for each in sorted(file.iterdir()) if each.name not in _SKIPPED and each.name[0] != "."]
        return head + "".join(f"- [{each.name}]({path.name}/{each.name})\n" for each in files if each.suffix)
    return f"{head}`````{_LANGUAGES.get(path.suffix, 'text')}\n{file.read_text()}`````\n"


def _with_links(root: Path, path: Path, text: str) -> tuple[str, list[Path]]:
    """Return a page whose links lead to pages of the site, and the files that become pages because of it."""
    linked: list[Path] = []
    page = _page_of(path)

    def replaced(match: re.Match[str]) -> str:
        target = _target(root, path, match[1])
        if target is None:
            return match[0]
        if not (_is_picture(target) or _generated(target)):
            linked.append(target)
        return posixpath.relpath(_page_of(target), posixpath.dirname(page)) + match[2]

    return _outside_code(text, lambda part: _LINK.sub(replaced, part)), linked


def _target(root: Path, path: Path, link: str) -> Path | None:
    """Return the file or folder of the repository that a link of a page leads to; None for other links."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(str(path)), link))
    return None if target.startswith("../") or not (root / target).exists() else Path(target)


def _page_of(path: Path) -> str:
    """Return the file of the site that shows a file or folder of the repository."""
    if generated := _generated(path):
        return generated
    if _is_picture(path):
        return posixpath.join(*path.parts[1:])
    if _is_in_navigation(path):
        return "index.md" if path.name == "README.md" else posixpath.join(*path.parts[1:])
    return f"files/{path}" if path.suffix == ".md" else f"files/{path}.md"


def _generated(path: Path) -> str | None:
    """Return the page that is generated from a file or folder, if there is one."""
    if path.parent == _PROTOS and path.suffix == ".proto":
        return f"reference/protos/{path.stem}.md"
    return _GENERATED.get(path)


def _is_picture(path: Path) -> bool:
    return path.parent == Path("docs", "images")


def _is_in_navigation(path: Path) -> bool:
    is_of_docs = path.parts[0] == "docs" and path.parts[1:2] != ("site",)
    return path.suffix == ".md" and (is_of_docs or path == Path("README.md"))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change the parts of a page that are no blocks of code."""
    parts, last = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, change(text[last:])])
