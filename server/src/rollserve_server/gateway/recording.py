"""Recordings: what a pool delivers goes to the process that writes a dataset."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from rollserve_server.datasets import DatasetRecorder
from rollserve_server.envs import space_to_proto
from rollserve_server.errors import CallTooLongError, DomainError, InvalidValueError, NotReadyError
from rollserve_server.futures import in_background
from rollserve_server.gateway.messages.accounts import account_to_proto, recording_to_proto
from rollserve_server.gateway.responses import delivered_messages
from rollserve_server.pool import (
    Account,
    AtLeast,
    Beginning,
    Delivery,
    InAll,
    MessageFormat,
    Progress,
    Recorded,
    SampleRequest,
)
from rollserve_server.sampling import ColumnFormat
from rollserve_wire.environments import env_spec_to_proto
from rollserve_wire.reasons import Reason
from rollserve_wire.v1 import datasets_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.datasets import DataFolder, Written
    from rollserve_server.gateway.messages.dataset_requests import RecordingRequest
    from rollserve_server.gateway.messages.environments import PrivateArguments
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.pool import DriveRequest, NewDataset, Pool, PoolStatus, SamplingOptions

__all__ = ["Recordings", "SessionRecording"]

_log = logging.getLogger(__name__)

_FORMAT = MessageFormat(256 << 20, ColumnFormat(None, True))
"""Messages have about 2 MiB; the limit is for steps that take more."""
_MAX_WAITING_BYTES = 32 << 20
"""Bytes of messages that wait at most for the addition before them."""
_ADD_SECONDS = 1.0
"""How often there is an addition, and a report, at least."""
_END_SECONDS = 30.0
"""How long the process may take for what it was given, once the recording ends."""
_CLAIM_SECONDS = 2.0
"""How long a recording waits for another one of its dataset to end."""


class Recordings:
    """Recordings into datasets of a folder. A dataset has one recording at a time."""

    def __init__(self, folder: DataFolder, private: PrivateArguments) -> None:
        """Record into the folder, without arguments of environments that are private."""
        self._folder = folder
        self._private = private
        self._claims: dict[Path, _Claim] = {}

    async def record(
        self, request: RecordingRequest, pool: Pool, rpc: OpenRpc
    ) -> AsyncGenerator[pb.RecordDatasetResponse | Account, None]:
        """Record a dataset; yield how far it is, the accounts of calls, and at last what has been recorded.

        Closing the iterator early ends the recording, as an error does: whole episodes that have arrived are written.

        Raises:
            InvalidValueError: the request does not go with the pool, or the name is no id.
            NotAllowedError: the operator does not allow the path.
            NotReadyError: the dataset is recorded by another call, or was recorded otherwise.
            OverLimitError: the disk is full.
            DomainError: as of `Pool.sample`.
        """
        async with contextlib.AsyncExitStack() as stack:
            folder, is_ending = await self._claim(request.dataset, stack)
            status = pool.status()
            request = await _with_versions(request, status, pool)
            origin = await _origin_of_calls(request.options, pool)
            writing = await self._opened(request.dataset, folder, request.metadata, origin, status)
            stack.push_async_exit(writing.end)
            stack.callback(is_ending.set)
            async with contextlib.aclosing(_Job(request, pool, rpc, writing).run()) as items:
                async for item in items:
                    yield item

    async def begin_session(
        self, request: DriveRequest, dataset: NewDataset, pool: Pool
    ) -> tuple[DriveRequest, SessionRecording]:
        """Open a dataset for a session, whose `end` closes it; return the request with what it is recorded with, too.

        Raises:
            DomainError: as of `record`.
        """
        async with contextlib.AsyncExitStack() as stack:
            folder, is_ending = await self._claim(dataset.id, stack)
            status = pool.status()
            env_version = _checked_env(request.options, status)
            origin = {
                "seed": request.options.seed,
                "first_episode_index": 0,
                "max_episode_length": pool.max_episode_length(request.options),
            }
            writing = await self._opened(dataset.id, folder, dataset.metadata, origin, status, is_session=True)
            stack.push_async_exit(writing.end)
            stack.callback(is_ending.set)
            options = dataclasses.replace(request.options, env_version=env_version, seed=writing.recorder.written.seed)
            request = dataclasses.replace(request, options=options, messages=_FORMAT)
            return request, SessionRecording(writing, stack.pop_all())

    async def _claim(self, dataset: str, stack: contextlib.AsyncExitStack) -> tuple[Path, asyncio.Event]:
        """Claim a dataset until the stack is closed; return its folder, and what says that the recording is ending."""
        folder = self._folder.dataset(dataset)
        claim = await stack.enter_async_context(self._claimed(folder))
        return folder, claim.is_ending

    @contextlib.asynccontextmanager
    async def _claimed(self, folder: Path) -> AsyncGenerator[_Claim, None]:
        """Keep other recordings from a dataset for the block, once one that is ending has ended.

        A recording whose client has gone begins to end when the server learns of it. A client that connects again at
        once waits for that.
        """
        deadline = asyncio.get_running_loop().time() + _CLAIM_SECONDS
        while (other := self._claims.get(folder)) is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await other.is_ending.wait()
            except TimeoutError:
                expected, got = "a dataset that nothing records", "one that another call records"
                raise NotReadyError.of("dataset", expected=expected, got=got, reason=Reason.DATASET_IN_USE) from None
            await other.has_ended.wait()
        claim = self._claims[folder] = _Claim()
        try:
            yield claim
        finally:
            del self._claims[folder]
            claim.has_ended.set()

    async def _opened(
        self,
        dataset: str,
        folder: Path,
        metadata: Mapping[str, Any],
        origin: Mapping[str, Any],
        status: PoolStatus,
        *,
        is_session: bool = False,
    ) -> _Writing:
        """Open a dataset: with what a new one gets, and what one that exists has to have."""
        spec = self._private.without(status.env_specs[0])
        env = json_format.MessageToDict(env_spec_to_proto(spec), preserving_proto_field_name=True)
        is_block = status.env.num_episodes_per_row is not None
        wrappers = [{"name": wrapper.name, "kwargs": dict(wrapper.kwargs)} for wrapper in spec.wrappers]
        opening = {
            "root": self._folder.root,
            "folder": str(folder),
            "dataset": dataset,
            "metadata": metadata,
            "is_session": is_session,
            "origin": {**origin, "environment": env, "rows_of_a_block": status.env.num_rows if is_block else None},
            "env": {"id": spec.id, "kwargs": dict(spec.kwargs), "wrappers": wrappers},
            "receipt": None
            if self._private.hidden(status.env_specs)
            else {
                "environment": env,
                "reproducibility": status.env.reproducibility.name,
                "packages": dict(status.packages),
                "env_version": status.env_version,
            },
        }
        return _Writing(dataset, await DatasetRecorder.start(opening, _space_messages(status)))


@dataclasses.dataclass
class _Claim:
    """A recording's claim to a dataset: whether it is only ending, and whether it has ended."""

    is_ending: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    has_ended: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


class _Writing:
    """Additions to a dataset, beside the work that they come from.

    Attributes:
        recorder: what writes them.
        is_full: whether more messages wait than should.
    """

    def __init__(self, dataset: str, recorder: DatasetRecorder) -> None:
        self.recorder = recorder
        self._dataset = dataset
        self._before = recorder.written
        self._messages: list[bytes] = []
        self._num_bytes = 0
        self._adding: asyncio.Task[None] | None = None
        self._added = time.monotonic()

    @property
    def is_full(self) -> bool:
        return self._num_bytes > _MAX_WAITING_BYTES and self._adding is not None

    def take(self, delivery: Delivery) -> None:
        """Have messages written."""
        for message in delivered_messages(delivery):
            self._messages.append(message.tobytes())
            self._num_bytes += message.nbytes

    def begin_addition(self) -> None:
        """Begin to write the messages that wait, if the addition before has ended; raises as `DatasetRecorder.add`."""
        if self._adding is not None:
            if not self._adding.done():
                return
            adding, self._adding = self._adding, None
            self._added = time.monotonic()
            adding.result()
        if self._messages or time.monotonic() - self._added >= _ADD_SECONDS:  # whole episodes may wait
            messages, self._messages, self._num_bytes = self._messages, [], 0
            self._adding = in_background(self.recorder.add(messages))

    async def make_room(self) -> None:
        """Wait for the addition that is made, for a while, and begin the next one if it has ended."""
        assert self._adding is not None  # noqa: S101  # it is full
        await asyncio.wait({self._adding}, timeout=_ADD_SECONDS)
        self.begin_addition()

    async def write_rest(self) -> None:
        """Write all messages that have arrived, and all whole episodes into the dataset."""
        await self._addition_ended()
        messages, self._messages, self._num_bytes = self._messages, [], 0
        self._adding = in_background(self.recorder.add(messages, convert=True))
        await self._addition_ended()

    async def _addition_ended(self) -> None:
        if self._adding is not None:
            await asyncio.wait({self._adding})  # which goes on if the recording is cancelled
            adding, self._adding = self._adding, None
            adding.result()

    async def end(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Write what has arrived, note how the recording has ended, and end its process."""
        await asyncio.shield(in_background(self._end(error)))

    async def _end(self, error: BaseException | None) -> None:
        try:
            async with asyncio.timeout(_END_SECONDS):
                if error is not None:
                    with contextlib.suppress(DomainError):  # the first error is the one that counts
                        await self.write_rest()
                await self.recorder.end(**_state_of(error))
        except (DomainError, TimeoutError) as unwritten:
            _log.warning("end of a recording not noted", extra={"error": str(unwritten) or "it took too long"})
        finally:
            await self.recorder.close()

    def recorded(self) -> Recorded:
        """Return what the dataset has, and what was added."""
        written, before = self.recorder.written, self._before
        return Recorded(
            self._dataset,
            written.num_episodes,
            written.num_steps,
            written.num_bytes,
            written.num_episodes - before.num_episodes,
            written.num_steps - before.num_steps,
            written.seed,
            written.next_index,
        )


class SessionRecording:
    """The recording of a session, which takes its rounds in place of the client."""

    def __init__(self, writing: _Writing, stack: contextlib.AsyncExitStack) -> None:
        """Record until the end, which closes the stack."""
        self._writing = writing
        self._stack = stack

    async def add(self, delivery: Delivery) -> None:
        """Take a delivery, once there is room; raises as `DatasetRecorder.add`."""
        self._writing.take(delivery)
        self._writing.begin_addition()
        while self._writing.is_full:
            await self._writing.make_room()

    async def end(self, error: BaseException | None = None) -> Recorded:
        """Write the rest, and close the dataset unless it is closed; may raise as `DatasetRecorder.add`."""
        stack = self._stack.pop_all()
        if error is not None:
            await stack.__aexit__(type(error), error, None)
        else:
            async with stack:
                await self._writing.write_rest()
        return self._writing.recorded()


class _Job:
    """Work of one recording: calls that deliver, and additions to the dataset beside them."""

    def __init__(self, request: RecordingRequest, pool: Pool, rpc: OpenRpc, writing: _Writing) -> None:
        self._request, self._pool, self._rpc, self._writing = request, pool, rpc, writing
        self._progress = Progress(0)
        self._account: Account | None = None

    @property
    def _written(self) -> Written:
        return self._writing.recorder.written

    async def run(self) -> AsyncGenerator[pb.RecordDatasetResponse | Account, None]:
        """Sample until the dataset is as long as requested; yields as `Recordings.record`."""
        yield self._reported()
        while (target := self._left()) is not None:
            before = self._written
            try:
                async for item in self._sampled(target):
                    yield item
                break
            except CallTooLongError:
                await self._writing.write_rest()
                if self._written.num_episodes == before.num_episodes:
                    raise
        await self._writing.write_rest()
        yield self._recording()

    async def _sampled(self, target: InAll | AtLeast) -> AsyncGenerator[pb.RecordDatasetResponse | Account, None]:
        """Make a call, and hand over what it delivers."""
        async with contextlib.aclosing(self._pool.sample(self._sample_request(target), self._rpc)) as items:
            reported = time.monotonic()
            async for item in items:
                if isinstance(item, Delivery):
                    self._writing.take(item)
                elif isinstance(item, Progress):
                    self._progress = item
                elif isinstance(item, Account):
                    self._account = item
                    yield item
                else:
                    assert isinstance(item, Beginning)  # noqa: S101  # recordings make no updates
                self._writing.begin_addition()
                while self._writing.is_full:
                    await self._writing.make_room()
                    yield self._reported()
                if time.monotonic() - reported >= _ADD_SECONDS:
                    reported = time.monotonic()
                    yield self._reported()

    def _left(self) -> InAll | AtLeast | None:
        """Return what is left to sample; None for nothing."""
        target, written = self._request.target, self._written
        if isinstance(target, AtLeast):
            return AtLeast(target.num_steps - written.num_steps) if target.num_steps > written.num_steps else None
        num_episodes = self._request.options.first_index + target.num_episodes - written.next_index
        return InAll(num_episodes) if num_episodes > 0 else None

    def _sample_request(self, target: InAll | AtLeast) -> SampleRequest:
        written = self._written
        options = dataclasses.replace(self._request.options, seed=written.seed, first_index=written.next_index)
        return SampleRequest(target, _FORMAT, options, num_workers=self._request.num_workers)

    def _reported(self) -> pb.RecordDatasetResponse:
        written = self._written
        progress = datasets_pb2.RecordingProgress(
            episode_count=written.num_episodes,
            step_count=written.num_steps,
            byte_count=written.num_bytes,
            simulated_step_count=self._progress.num_simulated_steps,
            waiting_for=self._progress.waiting_for,
        )
        return pb.RecordDatasetResponse(progress=progress)

    def _recording(self) -> pb.RecordDatasetResponse:
        recording, account = recording_to_proto(self._writing.recorded()), self._account
        if account is not None:
            recording.policy_version, recording.environment_version = account.policy_version, account.env_version
            recording.account.CopyFrom(account_to_proto(account))
        return pb.RecordDatasetResponse(recording=recording)


async def _with_versions(request: RecordingRequest, status: PoolStatus, pool: Pool) -> RecordingRequest:
    """Return the request with the versions that all its calls sample with.

    Raises:
        InvalidValueError: environments that a dataset of Minari does not hold, another version than the current one, or
            an agent that cannot act as freely as requested.
        NotReadyError: there is no agent, it does not fit, or its version is not kept.
    """
    options = dataclasses.replace(request.options, env_version=_checked_env(request.options, status))
    # Refused before there is a dataset, which would be an empty one.
    policy_version = await pool.acting_version(options, request.num_workers)
    return dataclasses.replace(request, options=dataclasses.replace(options, policy_version=policy_version))


def _checked_env(options: SamplingOptions, status: PoolStatus) -> int:
    """Return the version of the environment; raise InvalidValueError for what a dataset of Minari does not hold."""
    if status.env.agents:
        raise InvalidValueError.of("", expected="an environment with one agent for a recording", got="many agents")
    if len(status.env_specs) != 1:
        got = f"{len(status.env_specs)} of them"
        raise InvalidValueError.of("", expected="one environment for all rows for a recording", got=got)
    if options.env_version not in (None, status.env_version):
        expected = f"the current version {status.env_version}, or none"
        raise InvalidValueError.of("options.environment_version", expected=expected, got=options.env_version)
    return status.env_version


async def _origin_of_calls(options: SamplingOptions, pool: Pool) -> Mapping[str, Any]:
    """Return what the episodes of calls are a function of, beside the environment."""
    agents = [each for each in await pool.agents.listed() if each.number == options.policy_version]
    hashes = [summary.content_hash for each in agents for summary in each.agents]
    return {
        "seed": options.seed,
        "first_episode_index": options.first_index,
        "agent": hashlib.sha256("".join(hashes).encode()).hexdigest() if len(hashes) > 1 else "".join(hashes),
        "max_episode_length": pool.max_episode_length(options),
        "exploration": dataclasses.asdict(options.exploration),
        "skip_failed_episodes": options.skip_failed,
    }


def _space_messages(status: PoolStatus) -> list[bytes]:
    spaces = status.env.observation_space, status.env.action_space
    return [space_to_proto(space).SerializeToString() for space in spaces]


def _state_of(error: BaseException | None) -> dict[str, str]:
    """Return how a recording has ended, for its metadata."""
    if error is None:
        return {"state": "complete", "error": ""}
    if isinstance(error, DomainError):
        return {"state": "failed", "error": f"{error.reason}: {error.message}"}
    return {"state": "cancelled", "error": ""}
