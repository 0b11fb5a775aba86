"""The client: a sampler on a server."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc

from rollserve import requests
from rollserve.errors import DeadlineError, error_from_rpc
from rollserve.messages import StreamReader, join_batches
from rollserve.resumption import Backoff
from rollserve.status import SamplerStatus, status_from_proto
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve.v1.sampler_service_pb2_grpc import SamplerServiceStub

if TYPE_CHECKING:
    from rollserve.account import Account
    from rollserve.environments import EnvSpec, Wrapper
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.requests import AgentUpdate, EnvUpdate, SamplingOptions
    from rollserve.resumption import Request

__all__ = [
    "DEFAULT_TIMEOUT",
    "SampleStream",
    "Sampler",
    "TimeLimits",
    "channel_options",
    "connect",
    "is_passing",
    "silence_error",
]

DEFAULT_TIMEOUT = 60.0
"""Seconds that a call may go without an answer or a sign of progress."""

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


def connect(
    target: str,
    *,
    sampler: str = "",
    timeout: float = DEFAULT_TIMEOUT,
    max_message_bytes: int | None = None,
) -> Sampler:
    """A sampler on the server at `target` ("host:port"). Connects with the first call.

    Args:
        target: where the server listens.
        sampler: the sampler's name; empty for the default one.
        timeout: seconds that an update may take, and that a sampling call may go without any progress: a long call
            does not hit it while it makes steps.
        max_message_bytes: the largest message to be received; 4 MiB less 4 KiB unless given.
    """
    channel = grpc.insecure_channel(target, options=channel_options(max_message_bytes))
    return Sampler(channel, sampler=sampler, timeout=timeout, max_message_bytes=max_message_bytes)


class Sampler:
    """Sends agents and environments to a sampler, and receives episodes from it. Safe to use from several threads.

    All methods raise a `RollserveError` if the call fails; its subclasses say what can be done (see
    `rollserve.errors`). A call that fails has changed nothing on the server. Keyword `timeout` replaces the one given
    to `connect` for one call.
    """

    def __init__(self, channel: grpc.Channel, *, sampler: str, timeout: float, max_message_bytes: int | None) -> None:
        self._channel = channel
        self._stub = SamplerServiceStub(channel)
        self._name = sampler
        self._timeout = timeout
        self._max_message_bytes = max_message_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and ends calls that are running."""
        self._channel.close()

    def update_agent(
        self,
        agent: AgentUpdate | None = None,
        *,
        per_worker: Sequence[AgentUpdate] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Gives the workers a new agent, or new parameters for the one that they have.

        Args:
            agent: for all workers, a full agent, or a mapping with all parameters of the agent that is there.
            per_worker: instead, one for each worker.
            timeout: see the class.

        Returns:
            The new policy version, once every worker holds it.
        """
        request = requests.update_agent_request(self._name, agent, per_worker)
        return self._call(self._stub.UpdateAgent, request, timeout).policy_version

    def update_env(
        self,
        env: str | EnvSpec | None = None,
        *,
        kwargs: Mapping[str, object] | None = None,
        wrappers: Sequence[Wrapper] = (),
        per_worker: Sequence[EnvSpec] | None = None,
        timeout: float | None = None,
    ) -> EnvUpdate:
        """Replaces the workers' environments.

        Args:
            env: for all workers, a spec, or an id to go with the next two arguments.
            kwargs: arguments of the environment, as JSON has them.
            wrappers: wrappers around the environment, innermost first.
            per_worker: instead, one spec for each worker; their spaces must be equal.
            timeout: see the class.

        Returns:
            The new version and spaces, once every worker has its environments.
        """
        request = requests.update_env_request(self._name, env, kwargs, wrappers, per_worker)
        return requests.env_update_from_proto(self._call(self._stub.UpdateEnv, request, timeout))

    def obtain_samples(self, num_steps: int, **options: Unpack[SamplingOptions]) -> EpisodeBatch:
        """Whole episodes with at least `num_steps` steps in all.

        Args:
            num_steps: how many steps at least; positive.
            options: see `SamplingOptions`.
        """
        with self.stream_samples(num_steps, **options) as stream:
            return stream.join()

    def obtain_exact_episodes(self, num_episodes_per_worker: int, **options: Unpack[SamplingOptions]) -> EpisodeBatch:
        """Exactly so many episodes of each worker: first all of worker 0, then all of worker 1, and so on.

        Arguments as of `obtain_samples`.
        """
        with self.stream_exact_episodes(num_episodes_per_worker, **options) as stream:
            return stream.join()

    def stream_samples(self, num_steps: int, **options: Unpack[SamplingOptions]) -> SampleStream:
        """What `obtain_samples` returns, message by message as it comes. An episode may go on in the next one."""
        request = requests.samples_request(self._name, num_steps, self._max_message_bytes, options)
        return SampleStream(self._stub.ObtainSamples, request, self._time_limits(options))

    def stream_exact_episodes(self, num_episodes_per_worker: int, **options: Unpack[SamplingOptions]) -> SampleStream:
        """What `obtain_exact_episodes` returns, message by message as it comes."""
        request = requests.exact_episodes_request(self._name, num_episodes_per_worker, self._max_message_bytes, options)
        return SampleStream(self._stub.ObtainExactEpisodes, request, self._time_limits(options))

    def status(self, *, timeout: float | None = None) -> SamplerStatus:
        """What the sampler is and what it has done."""
        request = pb.GetSamplerRequest(sampler=self._name)
        return status_from_proto(self._call(self._stub.GetSampler, request, timeout))

    def _time_limits(self, options: SamplingOptions) -> TimeLimits:
        timeout = options.get("timeout")
        return TimeLimits(self._timeout if timeout is None else timeout, options.get("deadline"))

    def _call(self, method: Callable[..., _Result], request: _Request, timeout: float | None) -> _Result:
        with _translated_errors():
            return method(request, timeout=self._timeout if timeout is None else timeout)


class SampleStream(Iterator["EpisodeBatch"]):
    """The batches of a sampling call as they come; closing it early cancels the call.

    The arrays are views of the messages and cannot be written to. Each batch can be used alone;
    `EpisodeBatch.concatenate(*stream).joined()` makes whole episodes of them. If the connection or the server is lost
    on the way, the stream goes on where it was as soon as both are back, for as long as its timeout.
    """

    def __init__(self, method: Callable[..., Any], request: Request, limits: TimeLimits) -> None:
        self._method = method
        self._limits = limits
        self._reader = StreamReader(request)
        self._backoff = Backoff(limits.timeout)
        self._call = method(request, timeout=limits.remaining())
        self._watchdog = _Watchdog(limits.timeout, lambda: self._call.cancel())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __next__(self) -> EpisodeBatch:
        while True:
            try:
                with self._watchdog:
                    response = next(self._call)
            except grpc.RpcError as error:
                if self._watchdog.expired:
                    self.close()
                    raise silence_error(self._watchdog.timeout) from error
                self._resume(error)
                continue
            except StopIteration:
                self.close()
                self._reader.end()
                raise
            if not response.HasField("beginning"):
                self._backoff.succeed()
            batch = self._reader.read(response)
            if batch is not None:
                return batch

    def _resume(self, error: grpc.RpcError) -> None:
        """Has another call bring the rest, after a while, or raises the error if it is of no use."""
        resumption = self._reader.resumption
        pause = self._backoff.next_seconds() if is_passing(error) and resumption.possible else None
        if pause is None:
            self.close()
            raise error_from_rpc(error) from error
        time.sleep(pause)
        self._call = self._method(resumption.rest(), timeout=self._limits.remaining())

    @property
    def num_simulated_steps(self) -> int:
        """How many steps the call is known to have simulated so far."""
        return self._reader.num_simulated_steps

    def end(self) -> Account:
        """The account, after the stream's end.

        Raises:
            ServerError: there is none.
        """
        return self._reader.end()

    def join(self) -> EpisodeBatch:
        """What is left of the stream as one batch of whole episodes, with the account."""
        return join_batches(list(self), self.end())

    def close(self) -> None:
        """Cancels the call unless it is over."""
        self._watchdog.stop()
        self._call.cancel()


class _Watchdog:
    """Calls `on_silence` once when its block takes longer than `timeout` seconds."""

    def __init__(self, timeout: float, on_silence: Callable[[], object]) -> None:
        self.timeout = timeout
        self.expired = False
        self._on_silence = on_silence
        self._entered: float | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="rollserve-watchdog", daemon=True).start()

    def __enter__(self) -> None:
        self._entered = time.monotonic()

    def __exit__(self, *exception: object) -> None:
        self._entered = None

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self.timeout / 10):
            entered = self._entered
            if entered is not None and time.monotonic() - entered >= self.timeout:
                self.expired = True
                self._on_silence()
                return


class TimeLimits:
    """How long a call may take.

    Attributes:
        timeout: seconds without progress.
    """

    def __init__(self, timeout: float, deadline: float | None) -> None:
        """Takes the seconds without progress, and those in all, if they are limited, from now on."""
        self.timeout = timeout
        self._until = None if deadline is None else time.monotonic() + deadline

    def remaining(self) -> float | None:
        """Seconds that are left in all, or None if they are not limited."""
        return None if self._until is None else max(self._until - time.monotonic(), 0.0)


def is_passing(error: grpc.RpcError) -> bool:
    """Whether the same call may succeed later."""
    return error.code() is grpc.StatusCode.UNAVAILABLE


def channel_options(max_message_bytes: int | None) -> list[tuple[str, int]]:
    """The options of a channel that takes messages of that size."""
    if max_message_bytes is None:
        return []
    return [("grpc.max_receive_message_length", max_message_bytes)]


def silence_error(timeout: float) -> DeadlineError:
    """The error for a call that made no progress for so many seconds."""
    return DeadlineError(f"no progress for {timeout:g} s", code=grpc.StatusCode.DEADLINE_EXCEEDED, reason="NO_PROGRESS")


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error) from error
