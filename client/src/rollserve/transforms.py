"""Transforms of rewards, actions and observations, which the server applies to the rows of an environment."""

from rollserve_wire.transforms import (
    CastObservations,
    ClipActions,
    ClipRewards,
    CropObservations,
    FlattenObservations,
    GrayscaleObservations,
    RescaleActions,
    RescaleObservations,
    ResizeObservations,
    ScaleObservations,
    ScaleRewards,
    SignRewards,
    Transform,
)

__all__ = [
    "CastObservations",
    "ClipActions",
    "ClipRewards",
    "CropObservations",
    "FlattenObservations",
    "GrayscaleObservations",
    "RescaleActions",
    "RescaleObservations",
    "ResizeObservations",
    "ScaleObservations",
    "ScaleRewards",
    "SignRewards",
    "Transform",
]
