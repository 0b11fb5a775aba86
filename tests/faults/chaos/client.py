"""A client process: it makes random calls until it is stopped, and records them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import json
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults.chaos.calls import KINDS, MAX_PAUSES, Call, draw_call, members_of
from faults.chaos.events import EventLog
from faults.chaos.processes import end_with_parent
from faults.chaos.recorder import Recorder, Recording
from faults.chaos.sessions import act, drive

import rollserve
from rollserve._calls.evaluation_readers import EvaluationReader, PopulationReader, Reader
from rollserve._calls.receiving import receive
from rollserve._calls.time_limits import TimeLimits
from rollserve_wire.v1.episode_batch_pb2 import Beginning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve.async_sample_stream import AsyncSampleStream
    from rollserve.sample_stream import SampleStream

__all__ = ["Client", "main"]

_TIMEOUT = 60.0  # seconds without progress: longer than a server takes to restart on a busy machine
_FAILED_SECONDS = 0.4  # pause after a failed call


class Client:
    """A client that makes random calls and records their results."""

    def __init__(
        self, address: str, recorder: Recorder, name: str, source: random.Random, kinds: Sequence[str] = tuple(KINDS)
    ) -> None:
        self._kinds = kinds
        self._broken: Call | None = None  # a session that the next one is to repeat
        self._address = address
        self._recorder = recorder
        self._source = source
        self._samplers = (
            rollserve.connect(address, timeout=_TIMEOUT, max_message_bytes=64 << 10),
            rollserve.connect(address, timeout=_TIMEOUT, shared_memory=True),
        )
        self._buffer = rollserve.EpisodeBuffer()
        self._names = (f"{name}/{number}" for number in itertools.count())
        self._rows: tuple[int, int | None]
        self._begin_rows()

    def run_one(self) -> None:
        """Make one call, and wait for its end."""
        call = draw_call(self._source, self._rows, self._kinds)
        if call.kind == "session" and self._broken is not None:
            call, self._broken = self._broken, None
        if call.kind == "at once":
            asyncio.run(self._at_once())
            return
        recording = self._recorder.begin(call)
        try:
            self._make(call, recording)
        except rollserve.RollserveError as error:
            self._fail(call, recording, error)

    def rest(self, folder: Path, name: str) -> None:
        """Free all data, confirm it with a file in the folder, and wait until the file is removed."""
        self._buffer = rollserve.EpisodeBuffer()
        gc.collect()
        mine = folder / name
        with contextlib.suppress(OSError):
            mine.touch()
        while mine.exists():
            time.sleep(0.1)

    def close(self) -> None:
        for sampler in self._samplers:
            sampler.close()

    def _make(self, call: Call, recording: Recording) -> None:
        sampler = self._samplers[call.connection]
        match call.kind:
            case "samples" | "exact" | "fragments":
                self._stream(call, recording, _stream_of(sampler, call))
            case "blackhole":
                with sampler.stream_samples(call.number, blackhole=True, **call.options) as stream:
                    assert not list(stream)
                    recording.begin(_beginning_of(stream))
                    recording.end("ok", stream.end())
            case "session":
                self._drive(call, recording, sampler)
            case "evaluation" | "population":
                self._evaluate(call, recording, sampler)
            case _:
                status = sampler.status()
                versions = sampler.agent_versions()
                assert [version.is_current for version in versions[-1:]] == [True][: len(versions)]
                recording.end("ok", num_healthy=sum(worker.healthy for worker in status.workers))

    def _stream(self, call: Call, recording: Recording, stream: SampleStream) -> None:
        with stream:
            if call.joined:
                try:
                    batch = stream.join(out=self._buffer)
                finally:
                    recording.begin(_beginning_of(stream))
                recording.deliver(batch)
                account = batch.account
            else:
                for position, batch in enumerate(stream):
                    recording.begin(_beginning_of(stream))
                    recording.deliver(batch)
                    if position < MAX_PAUSES:
                        time.sleep(call.pause_seconds)
                    if position + 1 == call.num_messages:
                        break
                if call.num_messages is not None:
                    recording.end("cancelled")
                    return
                account = stream.end()
        recording.end("ok", account)
        if call.kind == "fragments" and call.seed is not None:
            self._rows = call.seed, account.row_step_count + account.num_steps // self._num_rows(stream)

    def _num_rows(self, stream: SampleStream) -> int:
        beginning = _beginning_of(stream)
        assert beginning is not None
        return beginning.row_count

    def _drive(self, call: Call, recording: Recording, sampler: rollserve.Sampler) -> None:
        request = dataclasses.asdict(call)
        with drive(sampler, request) as session:
            for position, shown in enumerate(act(session, request)):
                recording.begin(session._reader._beginning)
                if isinstance(shown, rollserve.DrivenStep):
                    recording.show(shown)
                else:
                    recording.deliver(shown)
                if position == call.num_messages:
                    session.close()
                    recording.end("cancelled")
                    return
                if position < MAX_PAUSES:
                    time.sleep(call.pause_seconds)
        recording.end("ok", session.account)

    def _evaluate(self, call: Call, recording: Recording, sampler: rollserve.Sampler) -> None:
        options: Any = dict(call.options)
        reader: Reader[Any]
        if call.kind == "population":
            versions = sampler.agent_versions()  # none of a sampler that has just begun
            options["policy_version"] = version = versions[-1].policy_version if versions else 0
            found = sampler.agent_parameters(version) if versions else {}
            if not found:
                recording.end("ok", has_parameters=False)
                return
            reader = PopulationReader("", members_of(found), call.number, True, options)
            method = sampler._stub.EvaluatePopulation
        else:
            reader = EvaluationReader(
                "", call.number, call.extras["return_episodes"], rollserve.EpisodeBatch, sampler._reception, options
            )
            method = sampler._stub.Evaluate
        # Like `Sampler.evaluate`, but keep the request, which alone has the run of the sampler.
        result = receive(method, reader, TimeLimits(_TIMEOUT, None), sampler._contact)
        resumable = reader.request.options
        recording.begin(
            Beginning(
                sampler_run=resumable.sampler_run,
                seed=result.seed,
                first_episode_index=result.first_episode_index,
                policy_version=result.policy_version,
                environment_version=result.env_version,
            )
        )
        if getattr(result, "episodes", None) is not None:
            recording.deliver(result.episodes)
        outcomes = [result.returns.tobytes().hex(), result.lengths.tobytes().hex()]
        recording.end("ok", result.account, outcomes=outcomes)

    async def _at_once(self) -> None:
        """Make three concurrent calls with an asynchronous client."""
        async with rollserve.aconnect(self._address, timeout=_TIMEOUT) as sampler:
            calls = [Call("samples", self._source.randrange(10, 800)) for _ in range(2)]
            calls.append(Call("exact", self._source.randrange(1, 20)))
            await asyncio.gather(*(self._stream_beside(sampler, call) for call in calls))

    async def _stream_beside(self, sampler: rollserve.AsyncSampler, call: Call) -> None:
        recording = self._recorder.begin(call)
        try:
            stream = _stream_of(sampler, call)
            async for batch in stream:
                recording.begin(_beginning_of(stream))
                recording.deliver(batch)
            recording.end("ok", stream.end())
        except rollserve.RollserveError as error:
            self._fail(call, recording, error)

    def _fail(self, call: Call, recording: Recording, error: rollserve.RollserveError) -> None:
        outcome = error.reason or error.code.name
        recording.end(
            "cancelled" if call.deadline and outcome == "DEADLINE_EXCEEDED" else outcome,
            text=error.message,
            field=error.field,
        )
        if call.kind == "session":
            self._broken = call
        if outcome in ("ROW_STEP_COUNT", "SAMPLER_RUN", "ENVIRONMENT_VERSION"):
            self._begin_rows()
        time.sleep(_FAILED_SECONDS)

    def _begin_rows(self) -> None:
        """Begin another row sequence, with a new seed."""
        self._rows = random.Random(next(self._names)).getrandbits(64), None


def _stream_of(sampler: Any, call: Call) -> Any:
    options = {**call.options, **call.extras, "deadline": call.deadline, "seed": call.seed}
    if call.kind == "fragments":
        return sampler.stream_fragments(call.number, row_step_count=call.row_step_count, **options)
    if call.seed is not None:
        options["first_episode_index"] = call.first_index
    method = sampler.stream_samples if call.kind == "samples" else sampler.stream_exact_episodes
    return method(call.number, **options)


def _beginning_of(stream: SampleStream | AsyncSampleStream) -> Beginning | None:
    """Return the first message of a stream, which the public API does not show."""
    return stream._reader.resumption._beginning


def main(text: str) -> None:
    """Make calls until the file `stop` exists, and rest while a folder `rest` exists beside it.

    The JSON text has the keys `address`, `seed`, `pause_seconds`, `in_full`, `log`, `name` and `stop`, and may have
    `calls`, the kinds of calls to make.
    """
    end_with_parent()
    rollserve.give_back_memory()  # the soak run measures it
    config = json.loads(text)
    source = random.Random(f"{config['seed']} {config['name']}")
    recorder = Recorder(EventLog(Path(config["log"])), in_full=config["in_full"])
    kinds = config.get("calls", list(KINDS))
    client = Client(config["address"], recorder, f"{config['seed']} {config['name']}", source, kinds)
    stop = Path(config["stop"])
    rest = stop.with_name("rest")
    while not stop.exists():
        if rest.exists():
            client.rest(rest, config["name"])
        client.run_one()
        time.sleep(source.uniform(0, 2) * config["pause_seconds"])
    client.close()


if __name__ == "__main__":
    main(sys.argv[1])
