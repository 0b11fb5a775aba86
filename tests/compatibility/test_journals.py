"""Journals that earlier releases have kept of a sampler, and what a file has of the same sampler."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from compatibility.make_journal import sampled
from faults.test_journal import LastingBackend, pool_on
from pools import CARTPOLE, pool_of, sample
from support import equal

from rollserve_server.agents import RandomSpec
from rollserve_server.pool import Fragments, InProcessBackend
from rollserve_server.pool.journal.kept_records import KeptRecords
from rollserve_server.pool.state.files import frames
from rollserve_server.pool.state.records import Record, sampler_records
from rollserve_wire.v1 import saved_sampler_pb2 as pb

JOURNALS = {path.stem: path.read_bytes() for path in Path(__file__).parent.glob("*.records")}
"""The sampler of `make_journal.py` from each release, like the files of `test_saved_files.py`."""


@pytest.mark.parametrize("name", JOURNALS)
async def test_sampler_that_a_release_left_is_taken_over(name: str) -> None:
    backend = LastingBackend()
    backend.kept = KeptRecords(frames(JOURNALS[name]))
    left = backend.left()
    assert left is not None
    seeds = {each.state.current.clock: each.state.seed for each in left.rows}
    assert sorted(seeds) == [5, 12]
    async with pool_on(backend, keep=False) as pool, pool_of(InProcessBackend()) as fresh:
        status = pool.status()
        assert (status.policy_version, status.env_version, status.env_specs) == (2, 1, [CARTPOLE])
        assert (len(status.workers), status.counters.num_completed_calls) == (2, 3)
        assert status.counters.num_steps >= 100 + 8 * 17
        await fresh.update_agent([RandomSpec()])
        await fresh.update_agent([RandomSpec()])
        for clock, seed in seeds.items():
            await sample(fresh, Fragments(8 * clock), seed=seed)
            pools = fresh, pool
            expected, batch = [await sample(each, Fragments(24, row_step_count=clock), seed=seed) for each in pools]
            assert equal(batch, expected)


ONLY_THERE = {
    "header": ["pool", "saved", "own_sequences", "own_seed", "sequence_seed_count", "row_seed_count"],
    "environments": ["client_id", "description"],
    "agents": ["client_ids", "spaces", "trials"],
    "rows": ["number", "previous_rows", "previous_row_step_count"],
}
"""Fields that only a journal has or only a file, and the time, by part of the state."""


def common(records: Iterable[Record]) -> list[pb.SavedRecord]:
    """Return the records of a journal or file, without what only one of the two has."""
    found = [pb.SavedRecord.FromString(b"".join(record)) for record in records]
    for record in found:
        part = record.WhichOneof("part") or ""
        for name in ONLY_THERE.get(part, ()):
            getattr(record, part).ClearField(name)
    return [record for record in found if not record.HasField("run")]


async def test_journal_and_file_of_a_sampler_are_equal() -> None:
    backend = LastingBackend()
    await sampled(backend)
    async with pool_on(backend) as pool:
        await sample(pool, Fragments(8 * 7, row_step_count=5), seed=9)
        saved = await pool.save()
        assert backend.kept is not None
        assert common(backend.kept) == common(sampler_records(saved))
