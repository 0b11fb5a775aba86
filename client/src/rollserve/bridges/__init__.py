"""Batches for other libraries, and agents from their networks; the methods of the same names call these functions.

Each library is imported when it is first used, and belongs to an extra of this package: `pip install
'rollserve[torch]'`. Arrays are shared wherever the library can share them; docs/bridges.md says where it cannot.
"""

from rollserve.bridges.onnx_mlps import mlp_model
from rollserve.bridges.rllib import to_rllib_episodes, to_sample_batch
from rollserve.bridges.stable_baselines3 import fill_rollout_buffer
from rollserve.bridges.tables import to_arrow, to_pandas
from rollserve.bridges.tensors import module_parameters, to_jax, to_torch
from rollserve.bridges.torch_losses import clipped_policy_loss
from rollserve.bridges.torch_models import TorchMlp, TorchModel, export_module, mlp_of_modules
from rollserve.bridges.torchrl import to_tensordict

__all__ = [
    "TorchMlp",
    "TorchModel",
    "clipped_policy_loss",
    "export_module",
    "fill_rollout_buffer",
    "mlp_model",
    "mlp_of_modules",
    "module_parameters",
    "to_arrow",
    "to_jax",
    "to_pandas",
    "to_rllib_episodes",
    "to_sample_batch",
    "to_tensordict",
    "to_torch",
]


def __dir__() -> list[str]:
    return __all__  # modules and imports are no part of the interface
