"""Rollserve's client: sends a policy to a server, and receives the episodes that it samples.

>>> import rollserve
>>> with rollserve.connect("127.0.0.1:50051") as sampler:  # doctest: +SKIP
...     sampler.update_agent(rollserve.RandomAgent())
...     batch = sampler.obtain_samples(10_000)
"""

import importlib
from typing import TYPE_CHECKING

from rollserve.account import Account, EpisodeFailure, WorkerAccount
from rollserve.agents import (
    Agent,
    AgentChange,
    ConstantAgent,
    MlpAgent,
    OnnxAgent,
    PickledAgent,
    Policies,
    PythonAgent,
    RandomAgent,
)
from rollserve.episode_batch import EpisodeBatch, StepType
from rollserve.mlp_agent import ActionMask
from rollserve.options import EvaluationOptions, SamplingOptions
from rollserve.progress import CallProgress
from rollserve.rounds import Round, StreamProgress
from rollserve.sample_stream import SampleStream
from rollserve.sampler import Sampler, connect
from rollserve.status import Counters, EnvProfile, Quota, SamplerStatus, SamplerSummary, WorkerStatus
from rollserve_wire.columns import text_infos
from rollserve_wire.environments import (
    EnvChange,
    EnvSpec,
    EnvUpdate,
    MultiAgentApi,
    Reproducibility,
    Task,
    Vectorization,
    Wrapper,
)
from rollserve_wire.errors import (
    AccessError,
    CancelledError,
    DeadlineError,
    InvalidArgumentError,
    LimitError,
    PreconditionError,
    RollserveError,
    ServerError,
    StoppedError,
    UnavailableError,
)
from rollserve_wire.memory import give_back_memory, hold_on_to_memory
from rollserve_wire.moments import PolicyMoments, RunningMoments
from rollserve_wire.reasons import Reason
from rollserve_wire.receipts import Receipt
from rollserve_wire.summaries import Summary

if TYPE_CHECKING:
    from rollserve import bridges, data, spaces, transforms
    from rollserve.agent_versions import AgentVersion, HeldAgent
    from rollserve.async_round_stream import AsyncRoundStream
    from rollserve.async_sample_stream import AsyncSampleStream
    from rollserve.async_sampler import AsyncSampler, aconnect
    from rollserve.cross_play import CrossPlay
    from rollserve.dataset_streams import AsyncDatasetStream, DatasetStream
    from rollserve.episode_buffer import EpisodeBuffer
    from rollserve.episode_records import AsyncRecordStream, CallKind, EpisodeRecords, RecordPosition, RecordStream
    from rollserve.evaluation import AgentReturns, Evaluation, PolicyVersion, PopulationEvaluation
    from rollserve.learning import Advantages, Estimate, PolicyEstimates, RunningReturns, Transitions
    from rollserve.multi_agent_batch import AgentSteps, MultiAgentBatch, PolicyBatch
    from rollserve.recordings import Recording
    from rollserve.replay import ReplayBuffer
    from rollserve.round_stream import RoundStream
    from rollserve.video import Video

    __version__: str

__all__ = [
    "AccessError",
    "Account",
    "ActionMask",
    "Advantages",
    "Agent",
    "AgentChange",
    "AgentReturns",
    "AgentSteps",
    "AgentVersion",
    "AsyncDatasetStream",
    "AsyncRecordStream",
    "AsyncRoundStream",
    "AsyncSampleStream",
    "AsyncSampler",
    "CallKind",
    "CallProgress",
    "CancelledError",
    "ConstantAgent",
    "Counters",
    "CrossPlay",
    "DatasetStream",
    "DeadlineError",
    "EnvChange",
    "EnvProfile",
    "EnvSpec",
    "EnvUpdate",
    "EpisodeBatch",
    "EpisodeBuffer",
    "EpisodeFailure",
    "EpisodeRecords",
    "Estimate",
    "Evaluation",
    "EvaluationOptions",
    "HeldAgent",
    "InvalidArgumentError",
    "LimitError",
    "MlpAgent",
    "MultiAgentApi",
    "MultiAgentBatch",
    "OnnxAgent",
    "PickledAgent",
    "Policies",
    "PolicyBatch",
    "PolicyEstimates",
    "PolicyMoments",
    "PolicyVersion",
    "PopulationEvaluation",
    "PreconditionError",
    "PythonAgent",
    "Quota",
    "RandomAgent",
    "Reason",
    "Receipt",
    "RecordPosition",
    "RecordStream",
    "Recording",
    "ReplayBuffer",
    "Reproducibility",
    "RollserveError",
    "Round",
    "RoundStream",
    "RunningMoments",
    "RunningReturns",
    "SampleStream",
    "Sampler",
    "SamplerStatus",
    "SamplerSummary",
    "SamplingOptions",
    "ServerError",
    "StepType",
    "StoppedError",
    "StreamProgress",
    "Summary",
    "Task",
    "Transitions",
    "UnavailableError",
    "Vectorization",
    "Video",
    "WorkerAccount",
    "WorkerStatus",
    "Wrapper",
    "aconnect",
    "bridges",
    "connect",
    "data",
    "give_back_memory",
    "hold_on_to_memory",
    "spaces",
    "text_infos",
    "transforms",
]

_LATE = {
    name: module
    for module, names in {
        "agent_versions": "AgentVersion HeldAgent",
        "async_round_stream": "AsyncRoundStream",
        "async_sample_stream": "AsyncSampleStream",
        "async_sampler": "AsyncSampler aconnect",
        "cross_play": "CrossPlay",
        "dataset_streams": "AsyncDatasetStream DatasetStream",
        "episode_buffer": "EpisodeBuffer",
        "episode_records": "AsyncRecordStream CallKind EpisodeRecords RecordPosition RecordStream",
        "evaluation": "AgentReturns Evaluation PolicyVersion PopulationEvaluation",
        "learning": "Advantages Estimate PolicyEstimates RunningReturns Transitions",
        "multi_agent_batch": "AgentSteps MultiAgentBatch PolicyBatch",
        "recordings": "Recording",
        "replay": "ReplayBuffer",
        "round_stream": "RoundStream",
        "video": "Video",
    }.items()
    for name in names.split()
}
"""The module of each name that is imported when it is first used."""


def __getattr__(name: str) -> object:
    """Import what is first used now: the module that has the name, or a public module itself."""
    if name == "__version__":
        from importlib.metadata import version  # it takes as long as some modules together

        value: object = version("rollserve")
    elif name in _LATE:
        value = getattr(importlib.import_module(f"rollserve.{_LATE[name]}"), name)
    elif name in __all__:
        value = importlib.import_module(f"rollserve.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]  # modules and imports are no part of the interface
