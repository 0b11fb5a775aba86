"""Transforms of observations that are images: (H, W), (H, W, C), or with the channels or frames first, (C, H, W)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rollserve_server.envs.transforms.leafwise import ColumnFunction, unfit
from rollserve_server.errors import InvalidValueError, NotFoundError
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_wire.transforms import CropObservations, GrayscaleObservations, ResizeObservations

__all__ = ["crop", "grayscale", "resize"]

_GREY_SHARES = (0.2125, 0.7154, 0.0721)
"""Shares of red, green and blue in a shade of grey, as gymnasium has them."""

_MAX_CHANNELS = 512  # of OpenCV


def crop(space: spaces.Box, transform: CropObservations) -> tuple[spaces.Box, ColumnFunction]:
    """Return the space and the function of a crop; raise InvalidValueError if the space has no such images."""
    height, width = _size(space, transform.channels_first)
    bottom, right = transform.top + transform.height, transform.left + transform.width
    if bottom > height or right > width:
        expected = f"a rectangle within an image of {height} lines of {width} columns"
        raise InvalidValueError(mismatch(expected, f"one that ends at line {bottom} and column {right}"))
    part = (slice(transform.top, bottom), slice(transform.left, right))
    place = (slice(None), *part) if transform.channels_first else part
    low, high = (np.ascontiguousarray(bound[place]) for bound in (space.low, space.high))
    rows = (slice(None), *place)
    return _box(low, high), lambda column: np.ascontiguousarray(column[rows])


def resize(space: spaces.Box, transform: ResizeObservations) -> tuple[spaces.Box, ColumnFunction]:
    """Return the space and the function of another size, as gymnasium's `ResizeObservation`.

    Raises:
        InvalidValueError: the space has no such images.
        NotFoundError: OpenCV is not installed.
    """
    _size(space, transform.channels_first)
    _check_bytes(space)
    cv2 = _opencv()
    size = transform.height, transform.width
    turned = size[::-1]  # OpenCV has the columns first
    shape = (space.shape[0], *size) if transform.channels_first else (*size, *space.shape[2:])
    if not transform.channels_first and len(space.shape) == 3 and space.shape[2] > _MAX_CHANNELS:
        raise unfit(f"images of at most {_MAX_CHANNELS} channels", space)

    def resized(column: np.ndarray) -> np.ndarray:
        images = column.reshape(-1, *column.shape[2:]) if transform.channels_first else column
        smaller = [cv2.resize(image, turned, interpolation=cv2.INTER_AREA) for image in images]
        return np.stack(smaller).reshape(len(column), *shape)

    return _box(np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8)), resized


def grayscale(space: spaces.Box, transform: GrayscaleObservations) -> tuple[spaces.Box, ColumnFunction]:
    """Return the space and the function of shades of grey, as gymnasium's `GrayscaleObservation`.

    Raises:
        InvalidValueError: the space has no such images.
    """
    axis = 0 if transform.channels_first else -1
    if len(space.shape) != 3 or space.shape[axis] != 3:
        raise unfit(f"images of shape {'(3, H, W)' if transform.channels_first else '(H, W, 3)'}", space)
    _check_bytes(space)
    size = space.shape[1:] if transform.channels_first else space.shape[:2]
    one = (1, *size) if transform.channels_first else (*size, 1)
    shape = one if transform.keep_channel else size

    def grey(column: np.ndarray) -> np.ndarray:
        colors = np.moveaxis(column, 1 if transform.channels_first else -1, 0)
        # Added up in this order, as numpy's sum over the last axis does.
        red, green, blue = (color * share for color, share in zip(colors, _GREY_SHARES, strict=True))
        red += green
        red += blue
        shades: np.ndarray = red.astype(np.uint8)
        return shades.reshape(len(column), *shape)

    return _box(np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8)), grey


def _size(space: spaces.Box, channels_first: bool) -> tuple[int, int]:
    """Return the numbers of lines and columns; raise InvalidValueError unless the space has images."""
    axes = (3,) if channels_first else (2, 3)
    if len(space.shape) not in axes:
        raise unfit(f"images of shape {'(C, H, W)' if channels_first else '(H, W) or (H, W, C)'}", space)
    height, width = space.shape[1:] if channels_first else space.shape[:2]
    return height, width


def _check_bytes(space: spaces.Box) -> None:
    if space.dtype != np.uint8 or space.low.any() or (space.high != 255).any():
        raise unfit("images of uint8 from 0 to 255", space)


def _box(low: np.ndarray, high: np.ndarray) -> spaces.Box:
    return spaces.Box(low, high, dtype=low.dtype.type)


def _opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        text = mismatch("OpenCV, which resizes images, on the server", str(error), "pip install 'gymnasium[other]'")
        raise NotFoundError(text, reason=Reason.PACKAGE_NOT_FOUND) from error
    return cv2
