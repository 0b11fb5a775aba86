"""A client: a process that makes one call after the other until it is time, whatever becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults.chaos.calls import MOST_PAUSES, Call, draw_call, members_of
from faults.chaos.events import EventLog
from faults.chaos.recorder import Recorder, Recording

import rollserve
from rollserve._calls.evaluations import EvaluationReader, PopulationReader, Reader, receive
from rollserve._calls.time_limits import TimeLimits
from rollserve.v1.episode_batch_pb2 import Beginning
from rollserve_server.serving.parent import end_with_parent

if TYPE_CHECKING:
    from rollserve.async_sampler import AsyncSampleStream
    from rollserve.sample_stream import SampleStream

__all__ = ["Client", "main"]

_TIMEOUT = 60.0
"""Seconds without progress: more than a gateway takes to start again on a busy machine."""
_FAILED_SECONDS = 0.4
"""Before the next call."""


class Client:
    """Makes calls, and takes down what comes of them."""

    def __init__(self, address: str, recorder: Recorder, name: str, source: random.Random) -> None:
        self._address = address
        self._recorder = recorder
        self._source = source
        self._samplers = (
            rollserve.connect(address, timeout=_TIMEOUT, max_message_bytes=64 << 10),
            rollserve.connect(address, timeout=_TIMEOUT, shared_memory=True),
        )
        self._buffer = rollserve.EpisodeBuffer()
        self._names = (f"{name}/{number}" for number in itertools.count())
        self._begin_rows()

    def run_one(self) -> None:
        """Makes a call and waits for its end."""
        call = draw_call(self._source, self._rows)
        if call.kind == "at once":
            asyncio.run(self._at_once())
            return
        recording = self._recorder.begin(call)
        try:
            self._make(call, recording)
        except rollserve.RollserveError as error:
            self._fail(call, recording, error)

    def rest(self, folder: Path, name: str) -> None:
        """Lets go of everything, tells so by a file in the folder, and waits until that is gone."""
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
                    recording.began(_beginning_of(stream))
                    recording.end("ok", stream.end())
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
                    recording.began(_beginning_of(stream))
                recording.came(batch)
                account = batch.account
            else:
                for position, batch in enumerate(stream):
                    recording.began(_beginning_of(stream))
                    recording.came(batch)
                    if position < MOST_PAUSES:
                        time.sleep(call.pause_seconds)
                    if position + 1 == call.num_messages:
                        break
                if call.num_messages is not None:
                    recording.end("cancelled")
                    return
                account = stream.end()
        recording.end("ok", account)
        assert account is not None
        if call.kind == "fragments" and call.seed is not None:
            self._rows = call.seed, account.row_step_count + account.num_steps // self._num_rows(stream)

    def _num_rows(self, stream: SampleStream) -> int:
        beginning = _beginning_of(stream)
        assert beginning is not None
        return beginning.row_count

    def _evaluate(self, call: Call, recording: Recording, sampler: rollserve.Sampler) -> None:
        options: Any = dict(call.options)
        reader: Reader[Any]
        if call.kind == "population":
            options["policy_version"] = version = sampler.agent_versions()[-1].policy_version
            found = sampler.agent_parameters(version)
            if not found:
                recording.end("ok", has_parameters=False)
                return
            reader = PopulationReader("", members_of(found), call.number, True, options)
            method = sampler._stub.EvaluatePopulation
        else:
            reader = EvaluationReader("", call.number, call.extras["return_episodes"], sampler._reception, options)
            method = sampler._stub.Evaluate
        # As `Sampler.evaluate` does; but which run of the sampler it was is told by the request alone.
        result = receive(method, reader, TimeLimits(_TIMEOUT, None))
        done = reader.request.options
        recording.began(
            Beginning(
                sampler_run=done.sampler_run,
                seed=result.seed,
                first_episode_index=result.first_episode_index,
                policy_version=result.policy_version,
                environment_version=result.env_version,
            )
        )
        if getattr(result, "episodes", None) is not None:
            recording.came(result.episodes)
        outcomes = [result.returns.tobytes().hex(), result.lengths.tobytes().hex()]
        recording.end("ok", result.account, outcomes=outcomes)

    async def _at_once(self) -> None:
        """Several calls of an asynchronous client at the same time."""
        async with rollserve.aconnect(self._address, timeout=_TIMEOUT) as sampler:
            calls = [Call("samples", self._source.randrange(10, 800)) for _ in range(2)]
            calls.append(Call("exact", self._source.randrange(1, 20)))
            await asyncio.gather(*(self._stream_beside(sampler, call) for call in calls))

    async def _stream_beside(self, sampler: rollserve.AsyncSampler, call: Call) -> None:
        recording = self._recorder.begin(call)
        try:
            stream = _stream_of(sampler, call)
            async for batch in stream:
                recording.began(_beginning_of(stream))
                recording.came(batch)
            recording.end("ok", stream.end())
        except rollserve.RollserveError as error:
            self._fail(call, recording, error)

    def _fail(self, call: Call, recording: Recording, error: rollserve.RollserveError) -> None:
        outcome = error.reason or error.code.name
        recording.end("cancelled" if call.deadline and outcome == "DEADLINE_EXCEEDED" else outcome, text=error.message)
        if outcome in ("ROW_STEP_COUNT", "SAMPLER_RUN", "ENVIRONMENT_VERSION"):
            self._begin_rows()
        time.sleep(_FAILED_SECONDS)

    def _begin_rows(self) -> None:
        """Takes another seed for fragments."""
        self._rows: tuple[int, int | None] = (random.Random(next(self._names)).getrandbits(64), None)


def _stream_of(sampler: Any, call: Call) -> Any:
    options = {**call.options, **call.extras, "deadline": call.deadline, "seed": call.seed}
    if call.kind == "fragments":
        return sampler.stream_fragments(call.number, row_step_count=call.row_step_count, **options)
    if call.seed is not None:
        options["first_episode_index"] = call.first_index
    method = sampler.stream_samples if call.kind == "samples" else sampler.stream_exact_episodes
    return method(call.number, **options)


def _beginning_of(stream: SampleStream | AsyncSampleStream) -> Beginning | None:
    """What the server said at the beginning of a stream, which clients need not know."""
    return stream._reader.resumption._beginning


def main(text: str) -> None:
    """Makes calls until a file `stop` is there, as the JSON says, and none while a folder `rest` is beside it.

    It has `address`, `seed`, `pause_seconds` and `in_full`, and of each client `log`, `name` and `stop`.
    """
    end_with_parent(os.getppid())
    rollserve.give_back_memory()  # what it takes is looked at
    config = json.loads(text)
    source = random.Random(f"{config['seed']} {config['name']}")
    recorder = Recorder(EventLog(Path(config["log"])), in_full=config["in_full"])
    client = Client(config["address"], recorder, f"{config['seed']} {config['name']}", source)
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
