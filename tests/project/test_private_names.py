"""Private modules that tests import: any of pure rooms, and a list of others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

TESTS = Path(__file__).parents[1]

PURE = (
    "rollserve._calls.joining",
    "rollserve._calls.responses",
    "rollserve._calls.rpc_errors",
    "rollserve._codec",
    "rollserve._formats",
    "rollserve_server.agents",
    "rollserve_server.gateway.messages",
    "rollserve_server.gateway.peers",
    "rollserve_server.gateway.requests.parsing",
    "rollserve_server.gateway.rpcs.rpc",
    "rollserve_server.gateway.rpcs.statuses",
    "rollserve_server.pool.backends.ray.identity",
    "rollserve_server.pool.backends.ray.placement",
    "rollserve_server.pool.calls.claims",
    "rollserve_server.pool.journal.kept_records",
    "rollserve_server.pool.journal.lease",
    "rollserve_server.pool.plan",
    "rollserve_server.pool.state",
    "rollserve_server.pool.workers.restarts",
    "rollserve_server.sampling.encode",
    "rollserve_server.sampling.fragments.action_history",
    "rollserve_server.sampling.record",
)
"""Rooms without clock, processes and I/O: each function is tested by what it returns."""

OTHERS: Mapping[str, set[str]] = {
    "faults/chaos/client.py": {
        "rollserve._calls.evaluation_readers",
        "rollserve._calls.receiving",
        "rollserve._calls.time_limits",
    },
    "faults/test_bounds.py": {"rollserve_server.gateway.rpcs", "rollserve_server.gateway.rpcs.places"},
    "faults/test_journal_format.py": {
        "rollserve_server.pool.backends.ray.journal",
        "rollserve_server.pool.backends.ray.journal_actor",
        "rollserve_server.pool.backends.ray.journal_handle",
    },
    "faults/test_lost_ray.py": {"rollserve_server.pool.backends.ray.worker"},
    "faults/test_lost_results.py": {"rollserve_server.sampling.work"},
    "faults/test_upgrades.py": {"rollserve_server.pool.backends.ray", "rollserve_server.pool.workers"},
    "gateway/test_rpc_table.py": {"rollserve_server.gateway.service"},
    "helpers/pools.py": {"rollserve_server.pool.calls.episodes"},
    "helpers/recycled_workers.py": {
        "rollserve_server.pool.backends.ray.backend",
        "rollserve_server.pool.backends.ray.worker",
    },
    "pool/test_lines.py": {
        "rollserve_server.pool.backends.ray",
        "rollserve_server.pool.backends.ray.line",
    },
    "sampling/test_moments.py": {"rollserve_server.sampling.work"},
    "server/test_ray_access.py": {"rollserve_server.pool.backends.ray.cluster"},
}
"""Private modules that other tests import, to show a part alone that public calls show with others."""
IMPORT = re.compile(r"from (rollserve\._|rollserve_server\.\w+\.)")
"""Text that files have if they import private modules; to parse all files takes 1 s longer."""


def private_imports() -> Iterator[tuple[str, str]]:
    """Yield each test file, and each module below a package's face that it imports, except in pure rooms."""
    texts = {path: path.read_text() for path in TESTS.rglob("*.py")}
    for path in sorted(path for path, text in texts.items() if IMPORT.search(text)):
        for node in ast.walk(ast.parse(texts[path])):
            name = node.module if isinstance(node, ast.ImportFrom) and node.module else ""
            match name.split("."):
                case ["rollserve", room, *_] if room.startswith("_") and not name.startswith(PURE):
                    yield str(path.relative_to(TESTS)), name
                case ["rollserve_server", _, _, *_] if not name.startswith(PURE):
                    yield str(path.relative_to(TESTS)), name


def test_tests_use_public_names() -> None:
    found: dict[str, set[str]] = {}
    for path, name in private_imports():
        found.setdefault(path, set()).add(name)
    assert found == OTHERS
