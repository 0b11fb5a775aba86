"""Transforms of rewards, actions and observations, for all rows of a worker at once."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from gymnasium.wrappers.utils import rescale_box
from numpy.typing import NDArray

from rollserve_server.envs.leaves import leaves_of_space
from rollserve_server.errors import InvalidValueError, NotFoundError, show, within
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason
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

__all__ = ["Transforms"]

_ColumnFunction = Callable[[np.ndarray], np.ndarray]
"""Returns the transformed values (M, *shape) of a leaf, in a new array or a view."""

_RewardFunction = Callable[[NDArray[np.float64], NDArray[np.float64]], object]
"""Writes the transformed rewards (M,) of the first array into the second, which may be the same."""

_GREY_SHARES = (0.2125, 0.7154, 0.0721)
"""Shares of red, green and blue in a shade of grey, as gymnasium has them."""

_MAX_CHANNELS = 512  # of OpenCV


class Transforms:
    """Transforms of an environment's rows; they have no state.

    Attributes:
        observation_space: space of the observations that agents see.
        action_space: space of the actions that agents choose.
        changes_rewards: whether any transform is about rewards.
        changes_actions: whether any transform is about actions.
        changes_observations: whether any transform is about observations.
    """

    def __init__(
        self, transforms: Sequence[Transform], observation_space: Space[Any], action_space: Space[Any]
    ) -> None:
        """Fit transforms to an environment.

        Args:
            transforms: the transforms, innermost first.
            observation_space: space of the observations that the environment returns.
            action_space: space of the actions that it takes.

        Raises:
            InvalidValueError: a transform does not fit the space that those before it leave; the field has its
                position.
            NotFoundError: a package is not installed.
        """
        self._rewards = _reward_functions(transforms)
        self._actions, self._observations = [], []
        for position, transform in enumerate(transforms):
            with within(f"transforms[{position}]"):
                action = _action_step(transform, action_space)
                observation = _observation_step(transform, observation_space)
            if action is not None:
                self._actions.append(action)
                action_space = action.space
            if observation is not None:
                self._observations.append(observation)
                observation_space = observation.space
        self._actions.reverse()  # the outermost gets an action first
        self.observation_space, self.action_space = observation_space, action_space
        self.changes_rewards = bool(self._rewards)
        self.changes_actions = bool(self._actions)
        self.changes_observations = bool(self._observations)

    def write_rewards(self, rewards: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        """Write what agents get for the environment's rewards (M,) into another array."""
        for function in self._rewards:
            function(rewards, out)
            rewards = out

    def environment_actions(self, actions: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return what the environment gets for the agent's actions, (M, *A) for each leaf."""
        for step in self._actions:
            actions = step.apply(actions)
        return actions

    def seen_observations(self, observations: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return what agents see of the environment's observations, (M, *O) for each leaf."""
        for step in self._observations:
            observations = step.apply(observations)
        return observations


class _Step(NamedTuple):
    """A transform of the values of a space.

    Attributes:
        space: space on the agent's side.
        functions: function for each leaf, None for a leaf that stays as it is.
    """

    space: Space[Any]
    functions: Sequence[_ColumnFunction | None]

    def apply(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the transformed column of each leaf."""
        pairs = zip(self.functions, columns, strict=True)
        return [column if function is None else function(column) for function, column in pairs]


@dataclass(frozen=True)
class _Flattening:
    """The values of all leaves as one vector.

    Attributes:
        space: space of the vectors.
        functions: functions that return each leaf's part of the vectors.
    """

    space: Space[Any]
    functions: Sequence[_ColumnFunction]

    def apply(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the vectors, as the column of the only leaf."""
        parts = [function(column) for function, column in zip(self.functions, columns, strict=True)]
        return parts if len(parts) == 1 else [np.concatenate(parts, axis=1, dtype=self.space.dtype)]


def _observation_step(transform: Transform, space: Space[Any]) -> _Step | _Flattening | None:
    """Return the step of a transform of observations, from the space before it; None for other transforms.

    Raises:
        InvalidValueError: the transform does not fit the space.
        NotFoundError: a package is not installed.
    """
    match transform:
        case CastObservations(dtype, leaves):
            return _leafwise(space, leaves, functools.partial(_cast, dtype=np.dtype(dtype)))
        case ScaleObservations(factor, offset, leaves):
            return _leafwise(space, leaves, functools.partial(_scale_observations, factor=factor, offset=offset))
        case RescaleObservations(low, high, leaves):
            return _leafwise(space, leaves, functools.partial(_rescale_observations, low=low, high=high))
        case CropObservations():
            return _leafwise(space, transform.leaves, functools.partial(_crop, transform=transform))
        case ResizeObservations():
            return _leafwise(space, transform.leaves, functools.partial(_resize, transform=transform))
        case GrayscaleObservations():
            return _leafwise(space, transform.leaves, functools.partial(_grayscale, transform=transform))
        case FlattenObservations([]):
            parts = [_flat(leaf.space) for leaf in leaves_of_space(space)]
            return _Flattening(spaces.flatten_space(space), parts)
        case FlattenObservations(leaves):
            return _leafwise(space, leaves, lambda leaf: (spaces.flatten_space(leaf), _flat(leaf)), spaces.Space)
        case _:
            return None


def _cast(space: spaces.Box, dtype: np.dtype) -> tuple[spaces.Box, _ColumnFunction]:
    low, high = space.low, space.high
    is_integer = np.dtype(space.dtype).kind in "iu"
    if dtype.kind == "f":
        if is_integer:  # integers without a bound still have a lowest and a highest value
            low = np.where(space.bounded_below, low.astype(np.float64), -np.inf)
            high = np.where(space.bounded_above, high.astype(np.float64), np.inf)
    elif not is_integer:
        raise _unfit(f"integers to convert to {dtype}", space)
    else:
        info = np.iinfo(dtype)
        if int(low.min(initial=0)) < info.min or int(high.max(initial=0)) > info.max:
            raise _unfit(f"bounds that {dtype} holds", space)
    with np.errstate(over="ignore"):  # bounds near the largest float64 are infinite as float32
        box = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
    return box, lambda column: _rounded(column, dtype)


def _scale_observations(space: spaces.Box, factor: float, offset: float) -> tuple[spaces.Box, _ColumnFunction]:
    dtype = np.dtype(space.dtype if np.dtype(space.dtype).kind == "f" else np.float32)
    low = np.where(space.bounded_below, space.low.astype(np.float64), -np.inf) * factor + offset
    high = np.where(space.bounded_above, space.high.astype(np.float64), np.inf) * factor + offset
    if factor < 0:
        low, high = high, low
    with np.errstate(over="ignore"):
        box = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)

    def scaled(column: np.ndarray) -> np.ndarray:
        if not offset:
            out = np.empty(column.shape, dtype)
            with np.errstate(over="ignore"):
                np.multiply(column, factor, out=out, dtype=np.float64, casting="same_kind")
            return out
        values = np.multiply(column, factor, dtype=np.float64)
        values += offset
        return _rounded(values, dtype)

    # In float64, the product of two float32 is exact, so multiplying them directly rounds to the same bits. It cannot
    # overflow either if the factor is small, and then takes a fifth of the time.
    own_factor = dtype.type(factor)
    if space.dtype == dtype and not offset and abs(factor) <= 1 and float(own_factor) == factor:
        return box, lambda column: column * own_factor

    return box, scaled


def _rescale_observations(space: spaces.Box, low: float, high: float) -> tuple[spaces.Box, _ColumnFunction]:
    if np.dtype(space.dtype).kind != "f":
        raise _unfit("floats; cast integers before", space)
    box, function, _ = _rescaling(space, low, high)
    return box, function


def _rounded(column: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):  # a float beyond the dtype becomes infinite
        return column.astype(dtype, copy=False)


def _flat(space: Any) -> _ColumnFunction:
    """Return the function that makes vectors of a leaf's values, as `gymnasium.spaces.flatten`."""
    match space:
        case spaces.Discrete():
            return functools.partial(_one_hot, starts=np.array([space.start]), sizes=np.array([space.n]))
        case spaces.MultiDiscrete():
            return functools.partial(_one_hot, starts=space.start.ravel(), sizes=space.nvec.ravel())
        case spaces.Box() | spaces.MultiBinary():
            return lambda column: column.reshape(len(column), -1)
        case _:
            raise InvalidValueError(mismatch("spaces that can be flattened", show(space)))


def _one_hot(column: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return vectors (M, sum of sizes) with a 1 for each of the numbers (M, …), one after the other."""
    values = column.reshape(len(column), -1) - starts
    places = np.cumsum(sizes) - sizes + values
    vectors = np.zeros((len(column), int(sizes.sum())), column.dtype)
    np.put_along_axis(vectors, places, 1, axis=1)
    return vectors


def _crop(space: spaces.Box, transform: CropObservations) -> tuple[spaces.Box, _ColumnFunction]:
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


def _resize(space: spaces.Box, transform: ResizeObservations) -> tuple[spaces.Box, _ColumnFunction]:
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
        raise _unfit(f"images of at most {_MAX_CHANNELS} channels", space)

    def resized(column: np.ndarray) -> np.ndarray:
        images = column.reshape(-1, *column.shape[2:]) if transform.channels_first else column
        smaller = [cv2.resize(image, turned, interpolation=cv2.INTER_AREA) for image in images]
        return np.stack(smaller).reshape(len(column), *shape)

    return _box(np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8)), resized


def _grayscale(space: spaces.Box, transform: GrayscaleObservations) -> tuple[spaces.Box, _ColumnFunction]:
    """Return the space and the function of shades of grey, as gymnasium's `GrayscaleObservation`.

    Raises:
        InvalidValueError: the space has no such images.
    """
    axis = 0 if transform.channels_first else -1
    if len(space.shape) != 3 or space.shape[axis] != 3:
        raise _unfit(f"images of shape {'(3, H, W)' if transform.channels_first else '(H, W, 3)'}", space)
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
        raise _unfit(f"images of shape {'(C, H, W)' if channels_first else '(H, W) or (H, W, C)'}", space)
    height, width = space.shape[1:] if channels_first else space.shape[:2]
    return height, width


def _check_bytes(space: spaces.Box) -> None:
    if space.dtype != np.uint8 or space.low.any() or (space.high != 255).any():
        raise _unfit("images of uint8 from 0 to 255", space)


def _box(low: np.ndarray, high: np.ndarray) -> spaces.Box:
    return spaces.Box(low, high, dtype=low.dtype.type)


def _opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        text = mismatch("OpenCV, which resizes images, on the server", str(error), "pip install 'gymnasium[other]'")
        raise NotFoundError(text, reason=Reason.PACKAGE_NOT_FOUND) from error
    return cv2


def _reward_functions(transforms: Iterable[Transform]) -> list[_RewardFunction]:
    """Return a function for each transform of rewards, in their order."""
    functions: list[_RewardFunction] = []
    for transform in transforms:
        match transform:
            case SignRewards():
                functions.append(np.sign)
            case ClipRewards(low, high):
                lowest, highest = -np.inf if low is None else low, np.inf if high is None else high
                functions.append(functools.partial(_clip_rewards, low=lowest, high=highest))
            case ScaleRewards(factor, offset):
                functions.append(functools.partial(_scale_rewards, factor=factor, offset=offset))
    return functions


def _clip_rewards(rewards: NDArray[np.float64], out: NDArray[np.float64], low: float, high: float) -> None:
    rewards.clip(low, high, out=out)  # half the time of the function


def _scale_rewards(rewards: NDArray[np.float64], out: NDArray[np.float64], factor: float, offset: float) -> None:
    np.multiply(rewards, factor, out=out)
    if offset:
        out += offset


def _action_step(transform: Transform, space: Space[Any]) -> _Step | None:
    """Return the step of a transform of actions, from the space that it leads to; None for other transforms.

    Raises:
        InvalidValueError: the transform does not fit the space.
    """
    match transform:
        case RescaleActions(low, high):
            return _leafwise(space, (), functools.partial(_rescale_actions, low=low, high=high))
        case ClipActions():
            return _leafwise(space, (), _clip_actions)
        case _:
            return None


def _rescale_actions(space: spaces.Box, low: float, high: float) -> tuple[spaces.Box, _ColumnFunction] | None:
    if space.dtype is None or space.dtype.kind != "f":
        return None
    box, _, inverse = _rescaling(space, low, high)
    return box, inverse


def _clip_actions(space: spaces.Box) -> tuple[spaces.Box, _ColumnFunction]:
    return space, lambda actions: actions.clip(space.low, space.high)


def _leafwise(
    space: Space[Any],
    names: Collection[str],
    transform: Callable[[Any], tuple[Space[Any], _ColumnFunction] | None],
    kind: type[Space[Any]] = spaces.Box,
) -> _Step:
    """Return the step that transforms some leaves of a space.

    Args:
        space: the space.
        names: names of the leaves; empty for every one of the kind.
        transform: returns a leaf's new space and its function; None if the leaf is not concerned.
        kind: kind of the leaves' spaces.

    Raises:
        InvalidValueError: no leaf is concerned, a name is no leaf's, or a named leaf is of another kind or
            not concerned.
    """
    leaves = leaves_of_space(space)
    unknown = sorted(set(names) - {leaf.name for leaf in leaves})
    if unknown:
        known = ", ".join(repr(leaf.name) for leaf in leaves if leaf.name)
        expected = f"names among {known}" if known else "none, because the space has no named leaves"
        raise InvalidValueError.of("leaves", expected=expected, got=repr(unknown[0]))
    new_spaces: list[Space[Any]] = []
    functions: list[_ColumnFunction | None] = []
    for leaf in leaves:
        found = None
        if isinstance(leaf.space, kind) and (not names or leaf.name in names):
            with within(f"[{leaf.name!r}]" if leaf.name else ""):
                found = transform(leaf.space)
        if found is None and leaf.name in names:
            raise _unfit("Boxes as leaves", leaf.space)
        new_spaces.append(leaf.space if found is None else found[0])
        functions.append(None if found is None else found[1])
    if not any(functions):
        raise _unfit("a space with a Box that can be transformed", space)
    return _Step(_with_leaves(space, iter(new_spaces)), functions)


def _rescaling(space: spaces.Box, low: float, high: float) -> tuple[spaces.Box, _ColumnFunction, _ColumnFunction]:
    """Return gymnasium's rescaling of a Box of floats to other bounds: the Box, the function, and its inverse.

    Raises:
        InvalidValueError: an element of the Box has no two different finite bounds.
    """
    _check_finite(space)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting")  # gymnasium's, about the new bounds
        # numpy's floats, because gymnasium refuses Python's integers where bounds are fractions.
        box, forward, backward = rescale_box(space, np.float64(low), np.float64(high))
    dtype = np.dtype(space.dtype)
    return (
        box,
        lambda values: forward(values).astype(dtype, copy=False),
        lambda values: backward(values).astype(dtype, copy=False),
    )


def _unfit(expected: str, space: Space[Any]) -> InvalidValueError:
    """Return the error for a space that a transform does not fit."""
    return InvalidValueError(mismatch(expected, show(space)))


def _check_finite(space: spaces.Box) -> None:
    """Raise InvalidValueError unless each element of a Box has two different finite bounds."""
    is_fit = np.isfinite(space.low) & np.isfinite(space.high) & (space.low < space.high)
    if not is_fit.all():
        place = tuple(map(int, np.argwhere(~is_fit)[0]))
        got = f"{space.low[place]} and {space.high[place]}{f' at {list(place)}' if place else ''}"
        raise InvalidValueError(mismatch("two different finite bounds of each element", got))


def _with_leaves(space: Space[Any], leaves: Iterator[Space[Any]]) -> Space[Any]:
    """Return a space of the same structure with other leaves."""
    match space:
        case spaces.Dict():
            return spaces.Dict({key: _with_leaves(part, leaves) for key, part in space.spaces.items()})
        case spaces.Tuple():
            return spaces.Tuple([_with_leaves(part, leaves) for part in space.spaces])
        case _:
            return next(leaves)
