"""What a worker does: episodes by index, collected in rows and written as messages. Knows neither Ray nor gRPC."""

from rollserve_server.sampling.collect.recurrent_state import RecurrentState
from rollserve_server.sampling.encode.compression import COMPRESSIONS
from rollserve_server.sampling.protocol.episodes import (
    EARLY,
    PLAIN,
    Claim,
    ColumnFormat,
    EnvDescription,
    EpisodeFailure,
    EpisodeRange,
    Message,
    Order,
    Outcome,
    Parcel,
    Report,
    SequenceSpec,
    WorkerIdentity,
    WorkOrder,
)
from rollserve_server.sampling.protocol.fragments import (
    FragmentAssignment,
    FragmentOrder,
    FragmentReport,
    RowProgress,
    RowSequenceSpec,
    RowState,
)
from rollserve_server.sampling.protocol.populations import Population, PopulationOrder, PopulationReport
from rollserve_server.sampling.worker import Worker

__all__ = [
    "COMPRESSIONS",
    "EARLY",
    "PLAIN",
    "Claim",
    "ColumnFormat",
    "EnvDescription",
    "EpisodeFailure",
    "EpisodeRange",
    "FragmentAssignment",
    "FragmentOrder",
    "FragmentReport",
    "Message",
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
    "SequenceSpec",
    "WorkOrder",
    "Worker",
    "WorkerIdentity",
]
