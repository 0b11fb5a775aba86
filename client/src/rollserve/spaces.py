"""Spaces of observations and actions, with gymnasium's definitions but without gymnasium."""

from rollserve_wire.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

__all__ = ["Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Space", "Text", "Tuple"]
