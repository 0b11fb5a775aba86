"""How batches and other values are shown: as a line, as a table, in notebooks, and by completion."""

from __future__ import annotations

import dataclasses
import inspect
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import raises

import rollserve
from rollserve import EpisodeBatch

EVIL = "<script>alert('x')</script>&\x1b[31m\n"
BARS = " ▁▂▃▄▅▆▇█"


def with_returns(returns: list[float], **changes: Any) -> EpisodeBatch:
    """Return episodes of one step each, of these returns."""
    num = len(returns)
    columns: dict[str, Any] = {
        "observations": np.zeros((num, 3), np.float32),
        "last_observations": np.zeros((num, 3), np.float32),
        "actions": np.zeros(num, np.int64),
        "rewards": np.array(returns, np.float64),
        "lengths": np.ones(num, np.int64),
        "terminated": np.ones(num, np.bool_),
        "truncated": np.zeros(num, np.bool_),
    }
    return EpisodeBatch(**(columns | changes))


def parsed(batch: EpisodeBatch) -> ElementTree.Element:
    """Return the elements of a batch's HTML, which has to be well-formed."""
    return ElementTree.fromstring(batch._repr_html_())


def cells(batch: EpisodeBatch) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in parsed(batch).iter("tr")]


def test_table_describes_a_batch(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(2000)
    account = batch.account
    lines = str(batch).splitlines()
    assert (
        lines[0]
        == repr(batch)
        == f"EpisodeBatch({len(batch)} episodes, {batch.num_steps} steps, "
        + (f"{batch.terminated.sum()} terminated, {batch.truncated.sum()} truncated)")
    )
    statistics = dict(line.split(": ", 1) for line in lines[1:5] if not line.startswith(" "))
    for name, values in (("returns", batch.returns), ("lengths", batch.lengths)):
        text = f"mean {values.mean():.4g}, min {values.min():g}, median {np.median(values):g}, max {values.max():g}"
        assert statistics[name] == text
    versions = f"policy {account.policy_version}, environment {account.env_version}, seed {account.seed}"
    assert statistics["versions"] == versions
    columns = [line.split(maxsplit=2) for line in lines[5:]]
    assert ["observations", "float32", str(batch.observations.shape)] in columns
    assert ["agent_infos/log_prob", "float32", str((batch.num_steps,))] in columns
    rows = cells(batch)
    assert [row for row in rows if row[0] == "returns"] == [["returns", statistics["returns"]]]
    assert [row for row in rows if row[0] == "versions"] == [["versions", versions]]
    assert rows[rows.index(["column", "dtype", "shape"]) + 1 :] == columns


def test_account_is_of_whole_results_only(thread_sampler: rollserve.Sampler) -> None:
    thread_sampler.update_agent(rollserve.RandomAgent())
    batch = thread_sampler.obtain_samples(50)
    assert batch.account is batch.account_or_none
    for part in (batch.take(np.array([0])), *batch.split(), rollserve.EpisodeBatch.concatenate(batch)):
        assert part.account_or_none is None
        with raises(ValueError, field="account", match="expected the whole result of a call"):
            part.account  # noqa: B018


def test_histogram_shows_how_returns_are_spread() -> None:
    batch = with_returns([0.0] * 80 + [10.0] * 40 + [100.0])
    line = str(batch).splitlines()[2]
    match = re.fullmatch(rf"  0 ([{BARS}]+) 100", line)
    assert match is not None, line
    bars = match[1]
    assert (len(bars), bars[0], bars[1], bars[-1]) == (11, "█", "▄", "▁")
    assert set(bars[2:-1]) == {" "}
    charts = list(parsed(batch).iter("svg"))
    heights = [float(each.attrib["height"]) for each in charts[0]]
    titles = [each.findtext("title", "") for each in charts[0]]
    assert (heights[0], heights[1]) == (60.0, 30.0)
    assert heights[2:-1] == [0.0] * 8
    assert heights[-1] >= 1.0  # a single return is seen, too
    assert titles[0].startswith("80 returns from 0 to 9.09")
    assert sum(int(title.split()[0]) for title in titles) == len(batch)


@pytest.mark.parametrize("returns", [[], [1.0], [2.0, 2.0], [np.nan, 1.0], [np.inf, -np.inf]])
def test_histogram_is_left_out_without_two_finite_returns(returns: list[float]) -> None:
    batch = with_returns(returns)
    assert not any(bar in str(batch) for bar in BARS[1:])
    assert list(parsed(batch).iter("svg")) == []


@given(st.lists(st.floats(width=64), max_size=40))
def test_any_returns_can_be_shown(returns: list[float]) -> None:
    batch = with_returns(returns)
    assert str(batch).splitlines()[0] == repr(batch)
    finite = [value for value in returns if np.isfinite(value)]
    for chart in parsed(batch).iter("svg"):
        titles = [each.findtext("title", "") for each in chart]
        assert sum(int(title.split()[0]) for title in titles) == len(finite)


def test_names_of_columns_cannot_act() -> None:
    infos = {EVIL: np.zeros(2), "long" * 100: np.zeros(2)}
    batch = with_returns([1.0, 2.0], env_infos=infos)
    assert "<script" not in batch._repr_html_()
    shown = [row[0] for row in cells(batch) if row[0].startswith("env_infos/")]
    assert shown[0] == "env_infos/<script>alert('x')</script>&\\x1b[31m\\n"
    assert shown[1] == "env_infos/" + ("long" * 100)[:59] + "…"
    assert "\x1b" not in str(batch)


def test_size_is_bounded_for_many_columns_and_segments() -> None:
    num = 50_000
    infos = {f"info {index}": np.zeros(num) for index in range(200)}
    returns = np.random.default_rng(0).normal(size=num).tolist()
    batch = with_returns(returns, env_infos=infos, agent_infos=infos, episode_infos=infos)
    assert len(str(batch).splitlines()) < 60
    assert len(str(batch)) < 4_000
    assert len(batch._repr_html_()) < 16_000
    assert str(batch).count("192 more") == batch._repr_html_().count("192 more") == 3


def test_versions_of_several_policies_are_a_range() -> None:
    batch = with_returns([1.0, 2.0, 3.0], policy_versions=np.array([4, 2, 3]))
    assert "versions: policy 2 to 4" in str(batch).splitlines()
    assert "versions: policy unknown" in str(with_returns([1.0, 2.0])).splitlines()


MODULES = rollserve, rollserve.spaces, rollserve.transforms, rollserve.data, rollserve.bridges
VALUES = {
    f"{module.__name__}.{name}": kind
    for module in MODULES
    for name in module.__all__
    if inspect.isclass(kind := getattr(module, name)) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
}
REFERENCE = "rollserve.OnnxAgent"
LONG: list[Any] = [
    b"x" * 1_000_000,
    "x" * 100_000,
    {f"layer {i}": np.zeros((30, 30)) for i in range(100)},
    [["x" * 99] * 99] * 99,
    10**10_000,
    rollserve.OnnxAgent(b"x" * 1_000_000, "categorical", {"observation": "y" * 500}),
]


@pytest.mark.parametrize("name", [name for name, kind in VALUES.items() if kind.__repr__ is VALUES[REFERENCE].__repr__])
def test_repr_of_any_content_is_short(name: str) -> None:
    kind = VALUES[name]
    fields = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind._fields
    for start in range(len(LONG)):
        contents = [LONG[(start + position) % len(LONG)] for position in range(len(fields))]
        if dataclasses.is_dataclass(kind):
            value = object.__new__(kind)
            vars(value).update(zip(fields, contents, strict=True))
        else:
            value = kind(*contents)
        assert len(repr(value)) < 200
        assert "\n" not in repr(value)


def test_every_public_value_has_a_short_repr() -> None:
    own = {name for name, kind in VALUES.items() if kind.__repr__ is not VALUES[REFERENCE].__repr__}
    assert own == {"rollserve.EpisodeBatch", "rollserve.MultiAgentBatch"}
    assert repr(rollserve.RandomAgent()) == "RandomAgent(action_mask=None)"


def test_values_are_tables_in_notebooks(thread_sampler: rollserve.Sampler) -> None:
    env = thread_sampler.update_env("CartPole-v1")
    thread_sampler.update_agent(rollserve.MlpAgent.initial(env.observation_space, env.action_space, seed=0))
    account = thread_sampler.obtain_samples(50).account
    for value in (thread_sampler.status(), account, thread_sampler.evaluate(5), thread_sampler.metrics()):
        root = ElementTree.fromstring(value._repr_html_())  # type: ignore[union-attr]
        assert root.findtext("strong") == type(value).__name__
        rows = {row[0].text: row[1].text for row in root.iter("tr")}
        assert all(text is not None and len(text) < 200 for text in rows.values())
        assert len(rows) > 5
    records = thread_sampler.metrics()
    hostile = dataclasses.replace(thread_sampler.status(), server_version=EVIL)
    assert "<script" not in hostile._repr_html_()
    assert "returns" in records._repr_html_()


def test_names_and_options_complete() -> None:
    assert set(dir(rollserve)) == {*rollserve.__all__, "__version__"}
    for kind in (rollserve.Sampler, rollserve.AsyncSampler):
        for name, options in (
            ("obtain_samples", rollserve.SamplingOptions),
            ("stream_samples", rollserve.SamplingOptions),
            ("evaluate", rollserve.EvaluationOptions),
        ):
            assert set(options.__annotations__) < set(inspect.signature(getattr(kind, name)).parameters)
