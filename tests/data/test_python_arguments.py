"""Arguments from JSON as the tuples and arrays that parameters ask for, wherever an environment is made."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Tuple, Union, get_type_hints  # noqa: UP035

import numpy as np
import pytest
from numpy.typing import NDArray

import rollserve
from rollserve import EnvSpec, Wrapper
from rollserve.data import verify
from rollserve_wire.python_arguments import python_arguments

PAIRS: dict[str, object] = {
    "pairs": [[1, 2], [3, 4]],
    "either": [1, [2, 3]],
    "rows": [[1, 2]],
    "named": {"a": [1, 2]},
    "default": [[5, 6], [7]],
    "plain": [[1]],
}


@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_servers_pass_nested_tuples(thread_sampler: rollserve.Sampler, vectorization: Any) -> None:
    thread_sampler.update_env(EnvSpec("sample_envs:Pairs-v0", PAIRS, vectorization=vectorization, num_rows=2))


@pytest.mark.parametrize(
    "env",
    [
        EnvSpec("ALE/Pong-v5", {"frameskip": (2, 5), "obs_type": "ram", "max_num_frames_per_episode": 200}),
        EnvSpec("sample_envs:Pairs-v0", PAIRS),
        EnvSpec("sample_envs:Pairs", PAIRS),
        EnvSpec(
            "Pendulum-v1", {"max_episode_steps": 9}, [Wrapper("RescaleAction", {"min_action": [0], "max_action": [1]})]
        ),
    ],
    ids=lambda env: env.id,
)
def test_episodes_are_replayed_with_the_arguments_of_the_server(
    thread_sampler: rollserve.Sampler, env: EnvSpec, tmp_path: Path
) -> None:
    env = EnvSpec(env.id, env.kwargs, env.wrappers, vectorization="rows")
    thread_sampler.update_env(env)
    agent = rollserve.RandomAgent()
    thread_sampler.update_agent(agent)
    batch = thread_sampler.with_receipt(thread_sampler.obtain_samples(30), agent)
    batch.save(tmp_path / "a.npz")
    found = verify(tmp_path / "a.npz", allowed_modules=["sample_envs"])
    assert found.is_equal, found


def _typed(
    a: tuple[int, ...] | None = None,
    b: Optional[Tuple[Tuple[int, int], int]] = None,  # noqa: UP006, UP045
    c: Union[list[int], tuple[int, int]] = (),  # type: ignore[assignment] # noqa: UP007
    d: NDArray[np.float64] | None = None,
    e: list[tuple[int, int]] | None = None,
    f: Annotated[Tuple[int, int], object()] | None = None,  # noqa: UP006
    g: Literal["a"] | tuple[int, int] = "a",
    h: Any = (1, (2, [3])),
    i: Any = None,
    j: dict[str, dict[str, tuple[int, int]]] | None = None,
    k: list[int] | tuple[int, int] | None = None,
) -> None:
    """Take arguments of many types, whose annotations are texts in this module."""


def _evaluated(*args: Any, **kwargs: Any) -> None:
    """Take the arguments of `_typed`, whose annotations are types here."""


_evaluated.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        parameter.replace(annotation=get_type_hints(_typed, include_extras=True)[name])
        for name, parameter in inspect.signature(_typed).parameters.items()
    ]
)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("a", [1, 2], (1, 2)),
        ("a", 3, 3),
        ("b", [[1, 2], 3], ((1, 2), 3)),
        ("c", [1, 2], (1, 2)),
        ("e", [[1, 2], [3, 4]], [(1, 2), (3, 4)]),
        ("f", [1, 2], (1, 2)),
        ("g", [1, 2], (1, 2)),
        ("h", [1, [2, [3]], [4, [5]]], (1, (2, [3]), (4, [5]))),
        ("i", [[1]], [[1]]),
        ("j", {"x": {"y": [1, 2]}}, {"x": {"y": (1, 2)}}),
        ("k", [1, 2], [1, 2]),
        ("other", [1, 2], [1, 2]),
    ],
)
@pytest.mark.parametrize("make", [_typed, _evaluated], ids=["texts", "types"])
def test_lists_become_what_parameters_ask_for(make: Any, name: str, value: Any, expected: Any) -> None:
    found = python_arguments(make, {name: value})[name]
    assert (found, repr(found)) == (expected, repr(expected))


@pytest.mark.parametrize("make", [_typed, _evaluated], ids=["texts", "types"])
def test_arrays_and_registered_tuples_are_asked_for(make: Any) -> None:
    found = python_arguments(make, {"d": [1.0, 2.0], "i": [[1], 2]}, {"i": ((0,), 0)})
    assert isinstance(found["d"], np.ndarray)
    assert found["i"] == ((1,), 2)
