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
from rollserve.sample_stream import SampleStream
from rollserve.sampler import Sampler, connect
from rollserve.status import (
    Counters,
    EnvProfile,
    Quota,
    SamplerStatus,
    SamplerSummary,
    Scaling,
    SettingChange,
    SettingsReload,
    WorkerStatus,
)
from rollserve_wire.columns import leaves_of, text_infos
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

if TYPE_CHECKING:
    from rollserve import bridges, data, spaces, transforms
    from rollserve.agent_versions import AgentVersion, HeldAgent
    from rollserve.async_dataset_stream import AsyncDatasetStream
    from rollserve.async_iterations import AsyncIterations
    from rollserve.async_record_stream import AsyncRecordStream
    from rollserve.async_round_stream import AsyncRoundStream
    from rollserve.async_sample_stream import AsyncSampleStream
    from rollserve.async_sampler import AsyncSampler, aconnect
    from rollserve.async_session import AsyncSession
    from rollserve.async_session_rounds import AsyncSessionRounds
    from rollserve.cross_play import CrossPlay
    from rollserve.dataset_stream import DatasetStream
    from rollserve.driven_step import DrivenStep
    from rollserve.episode_buffer import EpisodeBuffer
    from rollserve.episode_records import CallKind, EpisodeRecords, RecordPosition
    from rollserve.evaluation import AgentReturns, Evaluation, PolicyVersion, PopulationEvaluation
    from rollserve.iterations import Iterations
    from rollserve.learning import Advantages, Estimate, PolicyEstimates, RunningReturns, Transitions
    from rollserve.multi_agent_batch import AgentSteps, MultiAgentBatch, PolicyBatch
    from rollserve.multi_agent_step import AgentTurns, MultiAgentStep
    from rollserve.record_stream import RecordStream
    from rollserve.recordings import Recording
    from rollserve.replay import ReplayBuffer
    from rollserve.round_stream import RoundStream
    from rollserve.rounds import Round, StreamProgress
    from rollserve.session import Session
    from rollserve.session_rounds import SessionRounds
    from rollserve.video import Video
    from rollserve_wire.summaries import Summary

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
    "AgentTurns",
    "AgentVersion",
    "AsyncDatasetStream",
    "AsyncIterations",
    "AsyncRecordStream",
    "AsyncRoundStream",
    "AsyncSampleStream",
    "AsyncSampler",
    "AsyncSession",
    "AsyncSessionRounds",
    "CallKind",
    "CallProgress",
    "CancelledError",
    "ConstantAgent",
    "Counters",
    "CrossPlay",
    "DatasetStream",
    "DeadlineError",
    "DrivenStep",
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
    "Iterations",
    "LimitError",
    "MlpAgent",
    "MultiAgentApi",
    "MultiAgentBatch",
    "MultiAgentStep",
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
    "Scaling",
    "ServerError",
    "Session",
    "SessionRounds",
    "SettingChange",
    "SettingsReload",
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
    "leaves_of",
    "spaces",
    "text_infos",
    "transforms",
]

_LATE = {
    name: module
    for module, names in {
        "rollserve.agent_versions": "AgentVersion HeldAgent",
        "rollserve.async_dataset_stream": "AsyncDatasetStream",
        "rollserve.async_iterations": "AsyncIterations",
        "rollserve.async_record_stream": "AsyncRecordStream",
        "rollserve.async_round_stream": "AsyncRoundStream",
        "rollserve.async_sample_stream": "AsyncSampleStream",
        "rollserve.async_sampler": "AsyncSampler aconnect",
        "rollserve.async_session": "AsyncSession",
        "rollserve.async_session_rounds": "AsyncSessionRounds",
        "rollserve.cross_play": "CrossPlay",
        "rollserve.dataset_stream": "DatasetStream",
        "rollserve.driven_step": "DrivenStep",
        "rollserve.episode_buffer": "EpisodeBuffer",
        "rollserve.episode_records": "CallKind EpisodeRecords RecordPosition",
        "rollserve.evaluation": "AgentReturns Evaluation PolicyVersion PopulationEvaluation",
        "rollserve.iterations": "Iterations",
        "rollserve.learning": "Advantages Estimate PolicyEstimates RunningReturns Transitions",
        "rollserve.multi_agent_batch": "AgentSteps MultiAgentBatch PolicyBatch",
        "rollserve.multi_agent_step": "AgentTurns MultiAgentStep",
        "rollserve.record_stream": "RecordStream",
        "rollserve.recordings": "Recording",
        "rollserve.replay": "ReplayBuffer",
        "rollserve.round_stream": "RoundStream",
        "rollserve.rounds": "Round StreamProgress",
        "rollserve.session": "Session",
        "rollserve.session_rounds": "SessionRounds",
        "rollserve.video": "Video",
        "rollserve_wire.summaries": "Summary",
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
        value = getattr(importlib.import_module(_LATE[name]), name)
    elif name in __all__:
        value = importlib.import_module(f"rollserve.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]  # modules and imports are no part of the interface
