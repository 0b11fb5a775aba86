"""Receipts of batches, from the state of the sampler that delivered them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import json_format

from rollserve.data.agent_files import agent_digest
from rollserve.episode_batch import EpisodeBatch
from rollserve.mlp_agent import MlpAgent
from rollserve_wire.checks import check_type
from rollserve_wire.environments import env_spec_to_proto
from rollserve_wire.errors import mismatch
from rollserve_wire.receipts import Receipt, column_digests

if TYPE_CHECKING:
    from rollserve.account import Account
    from rollserve.agents import Agent
    from rollserve.rounds import Round
    from rollserve.status import SamplerStatus

__all__ = ["acting_version", "with_receipt"]


def acting_version(batch: EpisodeBatch) -> int:
    """Return the version of the agent that acted in a batch, 0 of a session; raise as `with_receipt` for others."""
    return _origin(batch).policy_version


def with_receipt(
    batch: EpisodeBatch, status: SamplerStatus, agent: Agent | None, held: Agent | None = None
) -> EpisodeBatch:
    """Return the batch with a receipt; see `Sampler.with_receipt`.

    Args:
        batch: the batch.
        status: status of the sampler.
        agent: the agent whose digest the receipt has; None for none.
        held: the agent that acted, as the server holds it; None if it does not any more.
    """
    origin, digest = _origin(batch), "" if agent is None else agent_digest(agent)
    if agent is not None and held is not None and not _may_be_same(agent, held):
        raise ValueError(f"agent: {mismatch(f'the one of policy version {origin.policy_version}', 'another one')}")
    if origin.env_version != status.env_version:
        text = mismatch(f"environment version {origin.env_version}, as of the batch", status.env_version)
        raise ValueError(f"env_version: {text}: call this before the environment is updated")
    if len(status.envs) != 1:
        raise ValueError(f"envs: {mismatch('one environment for all rows', f'{len(status.envs)} of them')}")
    if status.hidden_arguments:
        hint = "the server's operator has given arguments that clients do not see"
        raise ValueError(f"envs: {mismatch('an environment without hidden arguments', status.hidden_arguments, hint)}")
    receipt = Receipt(
        environment=json_format.MessageToDict(env_spec_to_proto(status.envs[0]), preserving_proto_field_name=True),
        num_segments=len(batch),
        digests=column_digests(batch),
        reproducibility=status.reproducibility.name,
        packages={"rollserve-server": status.server_version, **status.packages},
        seed=origin.seed,
        env_version=origin.env_version,
        agent=digest,
        account={name: value for name, value in _counts(batch.account_or_none).items() if isinstance(value, int)},
    )
    return dataclasses.replace(batch, receipt=receipt)


def _origin(batch: EpisodeBatch) -> Account | Round:
    check_type("batch", batch, EpisodeBatch, "the batch of an environment with one agent")
    return batch.account if batch.round is None else batch.round


def _may_be_same(agent: Agent, held: Agent) -> bool:
    """Whether agents are of one kind and, if they are MLPs, have the same parameters in the dtypes that are held.

    Other kinds are not compared further: a model that is held has the present parameters in place of its own.
    """
    if not (isinstance(agent, MlpAgent) and isinstance(held, MlpAgent)):
        return type(agent) is type(held)
    return agent.parameters.keys() == held.parameters.keys() and all(
        np.array_equal(value, np.asarray(agent.parameters[name]).astype(value.dtype))
        for name, value in held.parameters.items()
    )


def _counts(account: Account | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {field.name: getattr(account, field.name) for field in dataclasses.fields(account) if field.name != "seed"}
