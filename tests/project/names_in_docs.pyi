"""Names that pages of the documentation take for granted, with the types that they have there."""

from typing import Any

import numpy as np

import rollserve

actor: Any
agent: rollserve.MlpAgent
batch: rollserve.EpisodeBatch
bias: np.ndarray
change: rollserve.EnvChange
env: rollserve.EnvUpdate
generator: np.random.Generator
mask: rollserve.ActionMask
model: Any
num_iterations: int
num_steps: int
other_agent: rollserve.MlpAgent
other_bias: np.ndarray
parameters: dict[str, np.ndarray]
q_values: np.ndarray
red: rollserve.MlpAgent
sampler: rollserve.Sampler
spec: rollserve.EnvSpec
target_log_probs: np.ndarray
tracer: Any
value_network: Any
values: np.ndarray
weight: np.ndarray

def critic(observations: np.ndarray) -> np.ndarray: ...
def is_good_enough(batch: rollserve.EpisodeBatch) -> bool: ...
def learn(*data: Any) -> Any: ...
def log_probs(observations: np.ndarray, actions: np.ndarray) -> np.ndarray: ...
def network(observations: np.ndarray, states: Any) -> np.ndarray: ...
def update(*data: Any) -> None: ...
