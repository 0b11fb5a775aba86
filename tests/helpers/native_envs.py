"""Native vector environments of the tests, and settings that allow them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rollserve import EnvSpec
from rollserve_server.agents import ConstantSpec

CARTPOLE = EnvSpec("CartPole-v1", vectorization="native", num_rows=8, num_episodes_per_row=4)
COINS = EnvSpec("sample_envs:Coins-v0", {"num_steps": 30}, vectorization="native", num_rows=4, num_episodes_per_row=3)
ALLOWED = {"allow_module": ("sample_envs",), "vectorization": "auto", "rows": 16}
RIGHT = ConstantSpec({"": np.array(1)})


def coins(**kwargs: Any) -> EnvSpec:
    return dataclasses.replace(COINS, kwargs={**COINS.kwargs, **kwargs})
