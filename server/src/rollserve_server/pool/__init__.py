"""Decides which episodes run where, keeps their order, and accounts for them. Knows no gRPC and no protocol buffers."""

from rollserve_server.pool.accounts.account import Account, WorkerAccount
from rollserve_server.pool.accounts.counters import Counters
from rollserve_server.pool.accounts.env_failures import FailedEpisode
from rollserve_server.pool.accounts.episode_log import CallKind, EpisodeLog, EpisodeRecords, Histogram
from rollserve_server.pool.accounts.moments import DeliveredMoments, FormMoments
from rollserve_server.pool.backends.backend import Backend, RemoteBuffer, ServerBackend, WorkerHandle
from rollserve_server.pool.backends.in_process import InProcessBackend, ThreadWorker
from rollserve_server.pool.interface.expectation import ANY_VERSIONS, Expectation
from rollserve_server.pool.interface.requests import (
    DISCARD,
    EvaluationRequest,
    MessageFormat,
    PopulationRequest,
    SampleRequest,
    SamplingOptions,
)
from rollserve_server.pool.interface.results import Beginning, Delivery, Evaluation, Progress
from rollserve_server.pool.interface.status import PoolStatus, WorkerStatus
from rollserve_server.pool.interface.streams import (
    MAX_STREAMS,
    ApplyUpdate,
    RowFragments,
    StreamBounds,
    StreamClient,
    StreamRequest,
    StreamRound,
    WhenFull,
)
from rollserve_server.pool.interface.targets import AtLeast, Exactly, Fragments, InAll, Target
from rollserve_server.pool.interface.updates import (
    AgentChange,
    AgentUpdate,
    AgentUpdated,
    EnvUpdate,
    EnvUpdated,
    EnvValues,
    PolicyUpdate,
    PolicyUpdates,
    RowUpdates,
)
from rollserve_server.pool.interface.videos import VideoRequest
from rollserve_server.pool.pool import Pool
from rollserve_server.pool.state.checkpoints import ActionLog, Checkpoint, RowPoint
from rollserve_server.pool.state.row_sequence import RowSequenceKind, RowSequenceState
from rollserve_server.pool.state.saved_sampler import (
    SavedAgents,
    SavedEnvs,
    SavedOwnSequence,
    SavedOwnSequences,
    SavedRowSequence,
    SavedRowSequences,
    SavedSampler,
)
from rollserve_server.pool.versions.agent_queries import AgentVersionStatus
from rollserve_server.pool.versions.env_videos import RenderedEnv

__all__ = [
    "ANY_VERSIONS",
    "DISCARD",
    "MAX_STREAMS",
    "Account",
    "ActionLog",
    "AgentChange",
    "AgentUpdate",
    "AgentUpdated",
    "AgentVersionStatus",
    "ApplyUpdate",
    "AtLeast",
    "Backend",
    "Beginning",
    "CallKind",
    "Checkpoint",
    "Counters",
    "DeliveredMoments",
    "Delivery",
    "EnvUpdate",
    "EnvUpdated",
    "EnvValues",
    "EpisodeLog",
    "EpisodeRecords",
    "Evaluation",
    "EvaluationRequest",
    "Exactly",
    "Expectation",
    "FailedEpisode",
    "FormMoments",
    "Fragments",
    "Histogram",
    "InAll",
    "InProcessBackend",
    "MessageFormat",
    "PolicyUpdate",
    "PolicyUpdates",
    "Pool",
    "PoolStatus",
    "PopulationRequest",
    "Progress",
    "RemoteBuffer",
    "RenderedEnv",
    "RowFragments",
    "RowPoint",
    "RowSequenceKind",
    "RowSequenceState",
    "RowUpdates",
    "SampleRequest",
    "SamplingOptions",
    "SavedAgents",
    "SavedEnvs",
    "SavedOwnSequence",
    "SavedOwnSequences",
    "SavedRowSequence",
    "SavedRowSequences",
    "SavedSampler",
    "ServerBackend",
    "StreamBounds",
    "StreamClient",
    "StreamRequest",
    "StreamRound",
    "Target",
    "ThreadWorker",
    "VideoRequest",
    "WhenFull",
    "WorkerAccount",
    "WorkerHandle",
    "WorkerStatus",
]
