"""docs/client-streams.md: what the page says of the wire holds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from rollserve._calls.responses import read_response
from rollserve.episode_batch import EpisodeBatch

PAGE = Path(__file__).parents[2] / "docs" / "client-streams.md"


def test_bytes_of_the_page_are_the_message_that_it_describes() -> None:
    (text,) = re.findall(r"<!-- message -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    pairs = [re.match(r"(?:[0-9a-f]{2} )*[0-9a-f]{2}(?=   |$)", line.strip()) for line in text.splitlines()]
    message = bytes.fromhex(" ".join(pair.group() for pair in pairs if pair))
    batch = read_response(message)
    assert isinstance(batch, EpisodeBatch)
    assert (batch.episode_indices, batch.first_steps, batch.lengths) == ([7], [0], [2])
    assert (batch.terminated, batch.truncated, batch.policy_versions) == ([True], [False], [1])
    np.testing.assert_array_equal(batch.observations, np.array([[0.5], [1.0]], np.float32))
    np.testing.assert_array_equal(batch.last_observations, np.array([[1.5]], np.float32))
    np.testing.assert_array_equal(batch.actions, [1, 0])
    np.testing.assert_array_equal(batch.rewards, [1.0, -1.0])
    assert len(message) == 139
