"""Helpers of many tests: expected errors, equal batches, parsed batches."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import rollserve
from rollserve._calls.responses import read_response, unstack_frames
from rollserve._calls.rpc_errors import error_from_rpc
from rollserve_wire.columns import columns_of, leaves_of
from rollserve_wire.tensors import named_tensors_from_proto, tensor_from_proto
from rollserve_wire.v1 import episode_batch_pb2, tensor_pb2

HELPERS = Path(__file__).parent


def server_environment() -> dict[str, str]:
    """Return the variables that let a server find the environments and agents of the tests."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(HELPERS), os.environ.get("PYTHONPATH")]))}


class Sampled:
    """The versions and a batch of a sampler, for tests that change nothing of it."""

    def __init__(self, sampler: rollserve.Sampler) -> None:
        self._sampler = sampler
        self._versions, self._batch = self._present_versions(), sampler.obtain_samples(50, seed=1)

    def has_same_versions(self) -> bool:
        return self._present_versions() == self._versions

    def check(self) -> None:
        """Check that the sampler has the same versions, and samples the same."""
        assert self._present_versions() == self._versions
        again = self._sampler.obtain_samples(50, seed=1)
        assert np.array_equal(self._batch.observations, again.observations)
        assert np.array_equal(self._batch.agent_infos["log_prob"], again.agent_infos["log_prob"])

    def _present_versions(self) -> tuple[int, int]:
        status = self._sampler.status()
        return status.policy_version, status.env_version


@contextlib.contextmanager
def raises(
    kind: type[BaseException],
    *,
    field: str | None = None,
    reason: str | None = None,
    quotes: str | Iterable[str] = (),
    match: str | None = None,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect an error of this class in the block, and check it with `check_error`.

    Args:
        kind: class of the error.
        field: see `check_error`.
        reason: see `check_error`.
        quotes: see `check_error`.
        match: pattern of quoted data whose exact text varies.
    """
    with pytest.raises(kind, match=match) as caught:
        yield caught
    check_error(caught.value, field=field, reason=reason, quotes=quotes)


def check_error(
    error: Any, *, field: str | None = None, reason: str | None = None, quotes: str | Iterable[str] = ()
) -> None:
    """Check the field, the reason and the quoted data of an error. The wording of its message is free to change.

    Args:
        error: error of the client, of the server, or of gRPC itself.
        field: path of the field; the first words of the message where the error has no field, as `TypeError`.
        reason: member of `rollserve.Reason`, or empty for errors without one.
        quotes: data that the message has to contain, such as an environment's own error or the name of a leaf.
    """
    if isinstance(error, grpc.RpcError):
        error = error_from_rpc(error)
    if field is not None and hasattr(error, "field"):
        assert error.field == field, error
    elif field is not None:
        assert str(error).startswith(f"{field}: "), error
    if reason is not None:
        assert error.reason == reason, error
    for quote in [quotes] if isinstance(quotes, str) else quotes:
        assert quote in str(error)


def agent_and_workers(sampler: rollserve.Sampler) -> tuple[Any, ...]:
    """Return the policy version, the kinds of agents and the processes of the workers."""
    status = sampler.status()
    return status.policy_version, status.agent_kinds, [worker.process_id for worker in status.workers]


@contextlib.contextmanager
def silent_address() -> Iterator[str]:
    """Yield an address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def equal(first: rollserve.EpisodeBatch, second: rollserve.EpisodeBatch) -> bool:
    """Whether two batches have the same columns, to the last bit; their accounts, rounds and receipts may differ."""
    fields = dataclasses.fields(rollserve.EpisodeBatch)
    names = [field.name for field in fields if field.name not in ("account_or_none", "round", "receipt")]
    return all(_equal_columns(getattr(first, name), getattr(second, name)) for name in names)


def _equal_columns(first: object, second: object) -> bool:
    if first is None or second is None:
        return first is second
    ones, others = leaves_of(first), leaves_of(second)
    return ones.keys() == others.keys() and all(
        (one.dtype, one.shape, one.tobytes()) == (others[name].dtype, others[name].shape, others[name].tobytes())
        for name, one in ones.items()
    )


def read_batch(response: bytes | memoryview) -> rollserve.EpisodeBatch:
    """Return the batch in a serialized response."""
    batch = read_response(response)
    assert isinstance(batch, rollserve.EpisodeBatch)
    return batch


def batch_from_proto(message: episode_batch_pb2.EpisodeBatch) -> rollserve.EpisodeBatch:
    """Return the batch in a message, as the generated classes read it."""
    lengths = _integers(message.lengths)
    observations, last_observations = _columns(message.observations), _columns(message.last_observations)
    for stack in message.frame_stacks:
        if stack.name in observations or stack.name in last_observations:
            raise ValueError(f"{stack.name!r}: expected once, got twice")
        frames = tensor_from_proto(stack.frames, is_column=True)
        columns = unstack_frames(frames, stack.frame_count, lengths)
        observations[stack.name], last_observations[stack.name] = columns
    return rollserve.EpisodeBatch(
        observations=columns_of(observations),
        last_observations=columns_of(last_observations),
        actions=columns_of(_columns(message.actions)),
        rewards=tensor_from_proto(message.rewards, is_column=True),
        lengths=lengths,
        terminated=np.array(message.terminated, np.bool_),
        truncated=np.array(message.truncated, np.bool_),
        agent_infos=_columns(message.agent_infos),
        env_infos=_columns(message.environment_infos),
        episode_infos=_columns(message.episode_infos),
        policy_versions=_integers(message.policy_versions),
        episode_indices=_integers(message.episode_indices),
        first_steps=_integers(message.first_steps),
        env_seeds=_integers(message.environment_seeds),
        worker_indices=_integers(message.worker_indices) if message.worker_indices else None,
        initial_states=_columns(message.initial_states),
        last_values=tensor_from_proto(message.last_values, is_column=True) if message.HasField("last_values") else None,
        last_states=_columns(message.last_states),
        returns_before=np.array(message.returns_before) if message.returns_before else None,
    )


def _columns(tensors: Iterable[tensor_pb2.NamedTensor]) -> dict[str, np.ndarray]:
    return named_tensors_from_proto(tensors, are_columns=True)


def _integers(values: Iterable[int]) -> np.ndarray:
    return np.fromiter(values, np.int64)
