"""Decides which episodes run where, keeps their order, and accounts for them. Knows no gRPC and no protocol buffers."""

from rollserve_server.pool.accounts.account import Account, WorkerAccount
from rollserve_server.pool.accounts.env_failures import FailedEpisode
from rollserve_server.pool.backends.backend import Backend, RemoteBuffer, WorkerHandle
from rollserve_server.pool.backends.in_process import InProcessBackend
from rollserve_server.pool.calls.driver import Delivery, Progress, ignore_answer
from rollserve_server.pool.calls.evaluations import MOST_EVALUATIONS
from rollserve_server.pool.config import PoolConfig, SampleRequest
from rollserve_server.pool.interface.beginning import Beginning
from rollserve_server.pool.interface.evaluation import (
    EpisodeDelivery,
    Evaluation,
    EvaluationOptions,
    EvaluationRequest,
    PopulationRequest,
)
from rollserve_server.pool.interface.fragments import Fragments
from rollserve_server.pool.interface.status import Counters, PoolStatus, WorkerStatus
from rollserve_server.pool.plan.plan import AtLeast, Exactly, InAll, Target
from rollserve_server.pool.pool import EnvUpdated, Pool
from rollserve_server.pool.versions.agent_versions import AgentVersionStatus
from rollserve_server.pool.versions.env_updates import EnvUpdate, RowUpdates
from rollserve_server.pool.versions.versions import AgentUpdate

__all__ = [
    "MOST_EVALUATIONS",
    "Account",
    "AgentUpdate",
    "AgentVersionStatus",
    "AtLeast",
    "Backend",
    "Beginning",
    "Counters",
    "Delivery",
    "EnvUpdate",
    "EnvUpdated",
    "EpisodeDelivery",
    "Evaluation",
    "EvaluationOptions",
    "EvaluationRequest",
    "Exactly",
    "FailedEpisode",
    "Fragments",
    "InAll",
    "InProcessBackend",
    "Pool",
    "PoolConfig",
    "PoolStatus",
    "PopulationRequest",
    "Progress",
    "RemoteBuffer",
    "RowUpdates",
    "SampleRequest",
    "Target",
    "WorkerAccount",
    "WorkerHandle",
    "WorkerStatus",
    "ignore_answer",
]
