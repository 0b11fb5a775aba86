"""Decides which episodes run where, keeps their order, and accounts for them. Knows no gRPC and no protocol buffers."""

from rollserve_server.pool.account import Account, WorkerAccount
from rollserve_server.pool.agent_versions import AgentVersionStatus
from rollserve_server.pool.backend import Backend, Payload, WorkerHandle
from rollserve_server.pool.beginning import Beginning
from rollserve_server.pool.config import PoolConfig, SampleRequest
from rollserve_server.pool.deliveries import Delivery, Progress, ignore_answer
from rollserve_server.pool.env_failures import FailedEpisode
from rollserve_server.pool.env_updates import EnvUpdate, RowUpdates
from rollserve_server.pool.evaluation import (
    EpisodeDelivery,
    Evaluation,
    EvaluationOptions,
    EvaluationRequest,
    PopulationRequest,
)
from rollserve_server.pool.evaluations import MOST_EVALUATIONS
from rollserve_server.pool.fragments import Fragments
from rollserve_server.pool.holdings import AgentUpdate
from rollserve_server.pool.in_process import InProcessBackend
from rollserve_server.pool.plan import AtLeast, Exactly, InAll, Target
from rollserve_server.pool.pool import EnvUpdated, Pool
from rollserve_server.pool.status import Counters, PoolStatus, WorkerStatus
from rollserve_server.pool.turns import Turns

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
    "Payload",
    "Pool",
    "PoolConfig",
    "PoolStatus",
    "PopulationRequest",
    "Progress",
    "RowUpdates",
    "SampleRequest",
    "Target",
    "Turns",
    "WorkerAccount",
    "WorkerHandle",
    "WorkerStatus",
    "ignore_answer",
]
