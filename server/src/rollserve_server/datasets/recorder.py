"""The server's side of a recording's child process; see `writing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rollserve_server.datasets.child import Child

__all__ = ["Recorder", "Written"]


@dataclass(frozen=True)
class Written:
    """Content of a dataset on disk.

    Attributes:
        num_episodes, num_steps: what it has.
        num_bytes: size of its data.
        next_index: index of the episode that comes next.
        seed: root seed of its episodes.
    """

    num_episodes: int
    num_steps: int
    num_bytes: int
    next_index: int
    seed: int


class Recorder:
    """A process that writes one dataset, which nobody else records meanwhile.

    Attributes:
        written: what the dataset holds.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self.written = Written(0, 0, 0, 0, 0)

    @classmethod
    async def start(cls, request: Mapping[str, Any], spaces: Sequence[bytes]) -> Self:
        """Open a dataset, or create it.

        Args:
            request: its folder, id and metadata, and what its episodes are a function of.
            spaces: messages of its spaces of observations and actions.

        Raises:
            NotReadyError: something else is recorded there, by another recording or now.
            NotFoundError: a library is not installed.
            OverLimitError: the disk is full.
        """
        recorder = cls(await Child.start("writing"))
        try:
            await recorder._command(request, spaces)
        except BaseException:
            recorder._child.kill()
            raise
        return recorder

    async def add(self, messages: Sequence[bytes], *, convert: bool = False) -> None:
        """Write messages to the log, and their whole episodes into the dataset at intervals, or at once.

        The beginning of an episode is dropped if a message comes in place of its rest.

        Raises:
            OverLimitError: the disk is full, or an episode is too large.
            NotReadyError: the dataset cannot be written.
        """
        await self._command({"convert": convert}, messages)

    async def end(self, state: str, **details: object) -> None:
        """Note how the recording has ended; raises as `add`."""
        await self._command({"state": state, **details}, ())

    async def close(self) -> None:
        """End the process, which has written what it was given."""
        await self._child.close()

    async def _command(self, command: Mapping[str, Any], parts: Sequence[bytes]) -> None:
        answer, _ = await self._child.ask(command, parts, field="dataset")
        self.written = Written(**answer)
