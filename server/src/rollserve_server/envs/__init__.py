"""Environments: rows of them, made from specs and stepped one by one or all at once."""

from rollserve_server.envs.callbacks import Callback, CallbackSteps
from rollserve_server.envs.determinism import Difference, Trace, Traces, agree, differences
from rollserve_server.envs.host_starts import CONNECTED, HostStart, is_connected, names_host
from rollserve_server.envs.hosts.host import is_hosted
from rollserve_server.envs.hosts.relays import RelayPlace, WorkerRelay
from rollserve_server.envs.leaves import Leaf, describe_space, leaf_bounds, leaves_of_space
from rollserve_server.envs.many.making import find_turn_env, find_turn_wrapper
from rollserve_server.envs.many.many_envs import ManyEnvs
from rollserve_server.envs.many.turns import AgentTurn
from rollserve_server.envs.permissions import (
    check_allowed,
    check_arguments,
    check_method_allowed,
    check_paths,
    environment_from_proto,
    paths_in,
)
from rollserve_server.envs.plain_spaces import (
    check_space_sizes,
    is_same_space,
    pickle_uniform_boxes,
    plain_space,
    space_from_proto,
    space_to_proto,
)
from rollserve_server.envs.probing.memory import (
    check_sampler_observations_fit,
    observation_bytes,
    worker_observation_bytes,
)
from rollserve_server.envs.probing.method_calls import MethodCall
from rollserve_server.envs.probing.probe import Probed, probe
from rollserve_server.envs.probing.rendering import MAX_FPS, MIN_FPS, Overlay, Rendering, VideoForm
from rollserve_server.envs.probing.run import run_method_call, run_probe, run_rendering
from rollserve_server.envs.profiles import (
    ProfileDescription,
    ProfileEnv,
    Profiles,
    check_not_free,
    of_profile,
    requested,
)
from rollserve_server.envs.registry import find_env, find_wrapper, module_of
from rollserve_server.envs.row_envs import RowEnvs
from rollserve_server.envs.row_specs import RowSpecs, WorkerSpecs, identity_of, specs_of_rows
from rollserve_server.envs.vector_envs import VectorEnvs
from rollserve_server.envs.vectorization import episodes_per_row, make_rows, spaces_text, why_not_single, with_envpool

__all__ = [
    "CONNECTED",
    "MAX_FPS",
    "MIN_FPS",
    "AgentTurn",
    "Callback",
    "CallbackSteps",
    "Difference",
    "HostStart",
    "Leaf",
    "ManyEnvs",
    "MethodCall",
    "Overlay",
    "Probed",
    "ProfileDescription",
    "ProfileEnv",
    "Profiles",
    "RelayPlace",
    "Rendering",
    "RowEnvs",
    "RowSpecs",
    "Trace",
    "Traces",
    "VectorEnvs",
    "VideoForm",
    "WorkerRelay",
    "WorkerSpecs",
    "agree",
    "check_allowed",
    "check_arguments",
    "check_method_allowed",
    "check_not_free",
    "check_paths",
    "check_sampler_observations_fit",
    "check_space_sizes",
    "describe_space",
    "differences",
    "environment_from_proto",
    "episodes_per_row",
    "find_env",
    "find_turn_env",
    "find_turn_wrapper",
    "find_wrapper",
    "identity_of",
    "is_connected",
    "is_hosted",
    "is_same_space",
    "leaf_bounds",
    "leaves_of_space",
    "make_rows",
    "module_of",
    "names_host",
    "observation_bytes",
    "of_profile",
    "paths_in",
    "pickle_uniform_boxes",
    "plain_space",
    "probe",
    "requested",
    "run_method_call",
    "run_probe",
    "run_rendering",
    "space_from_proto",
    "space_to_proto",
    "spaces_text",
    "specs_of_rows",
    "why_not_single",
    "with_envpool",
    "worker_observation_bytes",
]
