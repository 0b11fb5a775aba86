"""Writes what the journal of this version keeps, for `test_journals.py`.

`PYTHONPATH=tests:tests/helpers python tests/compatibility/make_journal.py tests/compatibility/journal-VERSION.records`
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from faults.test_journal import LastingBackend, pool_on
from pools import sample

from rollserve_server.agents import RandomSpec
from rollserve_server.pool import AtLeast, Fragments
from rollserve_server.pool.state.files import framed

__all__ = ["sampled"]


async def sampled(backend: LastingBackend) -> None:
    """Sample as for the files of `test_saved_files.py`, and leave the sampler in the backend's journal."""
    async with pool_on(backend) as pool:
        for _ in range(2):
            await pool.update_agent([RandomSpec()])
        await sample(pool, AtLeast(100))
        await sample(pool, Fragments(8 * 12))
        await sample(pool, Fragments(8 * 5), seed=9)


def main() -> None:
    """Write the file."""
    backend = LastingBackend()
    asyncio.run(sampled(backend))
    assert backend.kept is not None
    Path(sys.argv[1]).write_bytes(b"".join(framed(backend.kept)))


if __name__ == "__main__":
    main()
