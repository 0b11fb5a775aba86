"""Environments: from specs to rows of them that are stepped together."""

from rollserve_server.envs.determinism import Difference, Trace, differences
from rollserve_server.envs.leaves import Leaf, describe_space, leaves_of_space
from rollserve_server.envs.making import check_allowed, module_of
from rollserve_server.envs.native.native import offers_rows
from rollserve_server.envs.paths import check_arguments, check_paths, paths_in
from rollserve_server.envs.row_specs import RowSpecs, WorkerSpecs, specs_of_rows
from rollserve_server.envs.rows import RowEnvs
from rollserve_server.envs.vector_rows import VectorEnvs
from rollserve_server.envs.vectorization import episodes_per_row, make_rows, with_envpool

__all__ = [
    "Difference",
    "Leaf",
    "RowEnvs",
    "RowSpecs",
    "Trace",
    "VectorEnvs",
    "WorkerSpecs",
    "check_allowed",
    "check_arguments",
    "check_paths",
    "describe_space",
    "differences",
    "episodes_per_row",
    "leaves_of_space",
    "make_rows",
    "module_of",
    "offers_rows",
    "paths_in",
    "specs_of_rows",
    "with_envpool",
]
