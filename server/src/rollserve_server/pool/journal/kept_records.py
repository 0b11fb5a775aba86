"""Records of a sampler's state that its journal keeps, by what they are about."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from rollserve_server.pool.state.records import move_from_proto, parts_of, rows_from_proto, rows_records
from rollserve_server.pool.state.row_sequence import RowSequenceState
from rollserve_server.pool.state.saved_sampler import SavedRowSequence
from rollserve_wire.v1 import saved_sampler_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rollserve_server.pool.state.records import Record
    from rollserve_server.pool.state.row_sequence import RowsMoved

__all__ = ["KeptRecords"]


class KeptRecords:
    """Records of a sampler's state. Only headers and positions of rows are read: moves change positions in place."""

    def __init__(self, records: Iterable[bytes | memoryview]) -> None:
        """Keep a whole state, given its serialized records."""
        self._header = pb.SavedHeader()
        self._run: pb.SavedRecord | None = None
        self._envs: dict[int, pb.SavedRecord] = {}
        self._agents: dict[int, Sequence[pb.SavedRecord]] = {}
        self._rows: dict[int, RowSequenceState] = {}
        self.apply(records)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records of the state."""
        yield [pb.SavedRecord(header=self._header).SerializeToString()]
        if self._run is not None:
            yield [self._run.SerializeToString()]
        for record in itertools.chain(self._envs.values(), *self._agents.values()):
            yield [record.SerializeToString()]
        for number, state in self._rows.items():
            yield from rows_records(SavedRowSequence(state, number=number))

    def apply(self, records: Iterable[bytes | memoryview]) -> None:
        """Apply an entry, given its serialized records. Applying the same entry twice is the same as once."""
        has_header, new_envs, new_agents = False, set(), set()
        for part in parts_of(pb.SavedRecord.FromString(bytes(data)) for data in records):
            record = part[0]
            match record.WhichOneof("part"):
                case "header":
                    has_header, self._header = True, record.header
                case "run":
                    self._run = record
                case "environments":
                    number = record.environments.environment_version
                    self._envs[number] = record
                    new_envs.add(number)
                case "agents":
                    number = record.agents.policy_version
                    self._agents[number] = part
                    new_agents.add(number)
                case "rows":
                    messages = [each.rows for each in part]
                    self._rows[record.rows.number] = rows_from_proto(messages, self._header.worker_count)
                case "move":
                    self._move(move_from_proto([each.move for each in part]))
        if has_header:
            pool = self._header.pool
            _drop(self._envs, new_envs.union(pool.environment_versions))
            _drop(self._agents, new_agents.union(pool.policy_versions))
            _drop(self._rows, set(pool.row_sequences))

    def _move(self, moved: RowsMoved) -> None:
        start, known = moved.start, self._rows.pop(moved.number, None)
        at = (None if known is None else known.at(start)) if isinstance(start, int) else start
        if at is not None:
            current = at.after(moved.num_row_steps, moved.progress)
            self._rows[moved.number] = RowSequenceState(moved.seed, moved.kind, current, at)


def _drop(values: dict[int, Any], kept: set[int]) -> None:
    """Drop the values whose numbers are not kept."""
    for number in values.keys() - kept:
        del values[number]
