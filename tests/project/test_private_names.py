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
    "access/test_scopes.py": {"rollserve_server.gateway.service"},
    "client/test_running_moments.py": {"rollserve._calls", "rollserve._calls.own_versions"},
    "data/test_additions.py": {"rollserve_server.datasets.reading"},
    "envs/test_atari.py": {"rollserve_server.envs.making"},
    "envs/test_envpool.py": {"rollserve_server.envs.envpool"},
    "envs/test_many_envs.py": {"rollserve_server.envs.legal_actions"},
    "envs/test_own_wrappers.py": {"rollserve_server.envs.making"},
    "faults/chaos/client.py": {
        "rollserve._calls.evaluation_readers",
        "rollserve._calls.receiving",
        "rollserve._calls.time_limits",
    },
    "faults/test_bounds.py": {"rollserve_server.gateway.rpcs", "rollserve_server.gateway.rpcs.places"},
    "faults/test_journal_format.py": {
        "rollserve_server.pool.backends.ray.journal",
        "rollserve_server.pool.backends.ray.journal_handle",
    },
    "faults/test_lost_ray.py": {"rollserve_server.pool.backends.ray.worker"},
    "faults/test_lost_results.py": {"rollserve_server.sampling.work"},
    "gateway/test_loop_pauses.py": {"rollserve_server.datasets.folder"},
    "gateway/test_peers.py": {
        "rollserve_server.gateway.access",
        "rollserve_server.gateway.connections",
        "rollserve_server.gateway.rpcs.open_rpc",
        "rollserve_server.gateway.rpcs.places",
    },
    "gateway/test_profiles.py": {"rollserve_server.serving.checks"},
    "gateway/test_rpc_table.py": {"rollserve_server.gateway.rpcs.places", "rollserve_server.gateway.service"},
    "gateway/test_shared_memory.py": {"rollserve._calls.stream_reader", "rollserve_server.gateway.shared_memory"},
    "gateway/test_versions.py": {"rollserve._calls.receiving"},
    "helpers/pools.py": {"rollserve_server.pool.calls.episodes"},
    "helpers/recycled_workers.py": {
        "rollserve_server.pool.backends.ray.backend",
        "rollserve_server.pool.backends.ray.worker",
    },
    "pool/test_lines.py": {
        "rollserve_server.pool.backends.ray",
        "rollserve_server.pool.backends.ray.line",
        "rollserve_server.pool.workers.liveness",
    },
    "pool/test_prefetch.py": {"rollserve_server.pool.calls.episodes"},
    "pool/test_saved_records.py": {"rollserve_server.pool.accounts"},
    "pool/test_slow_work.py": {"rollserve_server.pool.versions"},
    "sampling/test_early_claims.py": {"rollserve_server.sampling.work"},
    "sampling/test_moments.py": {"rollserve_server.sampling.work"},
    "sampling/test_native_fragments.py": {"rollserve_server.envs.native"},
    "server/test_ray_access.py": {"rollserve_server.pool.backends.ray.cluster"},
}
"""Private modules that other tests import, to show a part alone that public calls show with others."""
IMPORT = re.compile(r"from (rollserve\._|rollserve_server\.\w+\.)")
"""What files have that import private modules; to parse all files takes 1 s longer."""


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
