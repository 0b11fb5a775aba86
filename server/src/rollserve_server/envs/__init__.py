"""Environments: from specs to rows of them that are stepped together."""

from rollserve_server.envs.leaves import Leaf, describe_space, leaves_of_space
from rollserve_server.envs.making import check_allowed, make_env, module_of
from rollserve_server.envs.paths import check_paths, paths_in
from rollserve_server.envs.purity import Difference, Trace, classify, differences, trace_episode
from rollserve_server.envs.rows import RowEnvs

__all__ = [
    "Difference",
    "Leaf",
    "RowEnvs",
    "Trace",
    "check_allowed",
    "check_paths",
    "classify",
    "describe_space",
    "differences",
    "leaves_of_space",
    "make_env",
    "module_of",
    "paths_in",
    "trace_episode",
]
