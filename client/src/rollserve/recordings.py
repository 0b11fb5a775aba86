"""Recordings of datasets on the server: the request, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollserve._calls.evaluation_readers import Reader
from rollserve._calls.requests import sampling_options
from rollserve.account import Account, account_from_proto
from rollserve_wire.checks import check_integer, check_names, check_type
from rollserve_wire.errors import InvalidArgumentError, mismatch
from rollserve_wire.records import record_from_message
from rollserve_wire.representations import briefly
from rollserve_wire.v1 import datasets_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve._calls.requests import Reception
    from rollserve.options import SamplingOptions

__all__ = ["Recording", "RecordingReader", "description_to_proto", "recording_from_proto"]


_DESCRIPTION = {
    "author": "authors",
    "author_email": "author_emails",
    "algorithm_name": "algorithm_name",
    "description": "description",
    "code_permalink": "code_permalink",
}
"""Fields of the description by Minari's names."""


@briefly
@dataclass(frozen=True)
class Recording:
    """Result of recording a dataset on the server.

    >>> print(sampler.record("cartpole/mlp-v0", num_episodes=100))  # doctest: +SKIP
    cartpole/mlp-v0: 100 episodes, 2204 steps, 0.5 MB (100 episodes added)

    Of a session, there is no next episode, version or account; the session has one.

    Attributes:
        dataset: id of the dataset.
        num_episodes: number of episodes in the dataset, of all recordings.
        num_steps: number of their steps.
        num_added_episodes: number of episodes that the call has added.
        num_added_steps: number of steps that it has added.
        num_bytes: size of the dataset's data.
        seed: root seed of the episodes.
        next_episode_index: index of the episode that a longer recording goes on with.
        policy_version: version of the policy that acted; 0 if nothing was added.
        env_version: version of the environment; 0 if nothing was added.
        account: what was simulated for the call; None if nothing was added.
    """

    dataset: str
    num_episodes: int
    num_steps: int
    num_added_episodes: int
    num_added_steps: int
    num_bytes: int
    seed: int
    next_episode_index: int
    policy_version: int
    env_version: int
    account: Account | None

    def __str__(self) -> str:
        return (
            f"{self.dataset}: {self.num_episodes} episodes, {self.num_steps} steps, {self.num_bytes / 1e6:.1f} MB "
            f"({self.num_added_episodes} episodes added)"
        )


def recording_from_proto(message: datasets_pb2.Recording) -> Recording:
    """Return the result in a message."""
    account = account_from_proto(message.account) if message.HasField("account") else None
    return record_from_message(
        Recording,
        message,
        num_added_episodes=message.added_episode_count,
        num_added_steps=message.added_step_count,
        account=account,
    )


class RecordingReader(Reader[Recording]):
    """Reader of the responses of RecordDataset. A call that is repeated goes on where the dataset ends."""

    def __init__(
        self,
        sampler: str,
        dataset_id: str,
        num_episodes: int | None,
        num_steps: int | None,
        metadata: Mapping[str, Any] | None,
        reception: Reception,
        options: SamplingOptions,
    ) -> None:
        """Build the request.

        Raises:
            TypeError: an unknown option, or an argument of the wrong type.
            InvalidArgumentError: an integer out of range, neither episodes nor steps, or both.
        """
        check_type("dataset_id", dataset_id, str, "an id such as cartpole/expert-v0")
        given = {
            name: value
            for name, value in (("num_episodes", num_episodes), ("num_steps", num_steps))
            if value is not None
        }
        if len(given) != 1:
            raise InvalidArgumentError.of("num_episodes", expected="it or num_steps", got=sorted(given) or "neither")
        for name, value in given.items():
            check_integer(name, value, 63, signed=False)
        request = pb.RecordDatasetRequest(
            sampler=sampler,
            dataset=dataset_id,
            options=sampling_options(reception, options),
            description=description_to_proto(metadata or {}),
        )
        if num_episodes is not None:
            request.episode_count = num_episodes
        if num_steps is not None:
            request.step_count = num_steps
        super().__init__(request, num_episodes, options)
        self._num_received_steps = self._num_received_episodes = 0

    def _num_received(self) -> tuple[int, int]:
        return self._num_received_steps, self._num_received_episodes

    def _read(self, response: bytes) -> None:
        content = pb.RecordDatasetResponse.FromString(response)
        match content.WhichOneof("content"):
            case "progress":
                progress = content.progress
                self.has_begun = self.can_repeat = True
                self._num_received_episodes, self._num_received_steps = progress.episode_count, progress.step_count
                self._num_simulated_steps = max(self._num_simulated_steps, progress.simulated_step_count)
                self.waiting_for = progress.waiting_for
            case "recording":
                self._result = recording_from_proto(content.recording)
                self._num_received_episodes = self._result.num_episodes
                self._num_received_steps = self._result.num_steps


def description_to_proto(metadata: Mapping[str, Any]) -> datasets_pb2.DatasetDescription:
    """Return what a new dataset says about itself, by Minari's names; raise TypeError for others."""
    fields: dict[str, Any] = {}
    for name, value in metadata.items():
        if name not in _DESCRIPTION:
            raise TypeError(f"metadata: {mismatch(f'names among {sorted(_DESCRIPTION)}', name)}")
        if name.startswith("author"):
            texts: Sequence[str] = [value] if isinstance(value, str) else sorted(value)
            check_names(f"metadata[{name!r}]", texts)
            fields[_DESCRIPTION[name]] = texts
        else:
            check_type(f"metadata[{name!r}]", value, str, "a text")
            fields[name] = value
    return datasets_pb2.DatasetDescription(**fields)
