"""The workers: each samples episodes in rows of environments and writes them as messages, without Ray and gRPC."""

from rollserve_server.sampling.encode.compression import COMPRESSIONS
from rollserve_server.sampling.encode.messages import new_array
from rollserve_server.sampling.fragments.action_history import action_log_leaves
from rollserve_server.sampling.protocol.descriptions import EnvDescription, WorkerIdentity
from rollserve_server.sampling.protocol.episodes import (
    Claim,
    EarlyClaim,
    EpisodeRange,
    Order,
    Parcel,
    Report,
    SequenceSpec,
)
from rollserve_server.sampling.protocol.fragments import (
    FragmentAssignment,
    FragmentOrder,
    FragmentReport,
    RecurrentState,
    RowProgress,
    RowSequenceSpec,
    RowsProgress,
    RowState,
)
from rollserve_server.sampling.protocol.orders import (
    ENDING,
    PLAIN,
    ColumnFormat,
    EpisodeFailure,
    Message,
    MomentsFormat,
    Outcome,
    WorkOrder,
)
from rollserve_server.sampling.protocol.populations import Members, Population, PopulationOrder, PopulationReport
from rollserve_server.sampling.worker.worker import Worker

__all__ = [
    "COMPRESSIONS",
    "ENDING",
    "PLAIN",
    "Claim",
    "ColumnFormat",
    "EarlyClaim",
    "EnvDescription",
    "EpisodeFailure",
    "EpisodeRange",
    "FragmentAssignment",
    "FragmentOrder",
    "FragmentReport",
    "Members",
    "Message",
    "MomentsFormat",
    "Order",
    "Outcome",
    "Parcel",
    "Population",
    "PopulationOrder",
    "PopulationReport",
    "RecurrentState",
    "Report",
    "RowProgress",
    "RowSequenceSpec",
    "RowState",
    "RowsProgress",
    "SequenceSpec",
    "WorkOrder",
    "Worker",
    "WorkerIdentity",
    "action_log_leaves",
    "new_array",
]
