"""Receipts of batches, from the state of the sampler that delivered them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from rollserve._checks import check_type
from rollserve.data.agent_files import agent_digest
from rollserve.environments import env_spec_to_proto
from rollserve.episode_batch import EpisodeBatch
from rollserve.errors import mismatch
from rollserve.receipts import Receipt, column_digests

if TYPE_CHECKING:
    from rollserve.agents import Agent
    from rollserve.status import SamplerStatus

__all__ = ["with_receipt"]


def with_receipt(batch: EpisodeBatch, status: SamplerStatus, agent: Agent | None) -> EpisodeBatch:
    """Return the batch with a receipt; see `Sampler.with_receipt`."""
    check_type("batch", batch, EpisodeBatch, "the batch of an environment with one agent")
    account = batch.account
    if account is None:
        raise ValueError(f"account: {mismatch('the whole result of a call', 'a batch without an account')}")
    if account.env_version != status.env_version:
        text = mismatch(f"environment version {account.env_version}, as of the batch", status.env_version)
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
        seed=account.seed,
        env_version=account.env_version,
        agent="" if agent is None else agent_digest(agent),
        account={name: value for name, value in _counts(account).items() if isinstance(value, int)},
    )
    return dataclasses.replace(batch, receipt=receipt)


def _counts(account: Any) -> dict[str, Any]:
    return {field.name: getattr(account, field.name) for field in dataclasses.fields(account) if field.name != "seed"}
