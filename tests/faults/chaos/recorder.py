"""Records of a client's calls and their results."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from faults.chaos.digests import num_bytes, segments_of, step_digest

if TYPE_CHECKING:
    from faults.chaos.calls import Call
    from faults.chaos.events import EventLog

    import rollserve
    from rollserve_wire.v1.episode_batch_pb2 import Beginning

__all__ = ["Recorder", "Recording"]


class Recorder:
    """Recorder of a client's calls in its log."""

    def __init__(self, log: EventLog, *, in_full: bool) -> None:
        """Record into a log.

        Args:
            log: log of the client.
            in_full: whether to record all segments, so that they can be compared.
        """
        self._log = log
        self._in_full = in_full
        self._numbers = itertools.count()

    def begin(self, call: Call) -> Recording:
        """Record the request of a call."""
        number = next(self._numbers)
        self._log.write("call", call=number, kind=call.kind, request=dataclasses.asdict(call))
        return Recording(self._log, number, call.kind, in_full=self._in_full)


class Recording:
    """Record of one call."""

    def __init__(self, log: EventLog, number: int, kind: str, *, in_full: bool) -> None:
        self._log = log
        self._number = number
        self._kind = kind
        self._in_full = in_full
        self._begun = False
        self._num_bytes = 0
        self._num_steps = 0

    def begin(self, beginning: Beginning | None) -> None:
        """Record what the episodes of the call depend on, once the server has said so."""
        if beginning is None or self._begun:
            return
        self._begun = True
        self._log.write(
            "beginning",
            call=self._number,
            run=beginning.sampler_run,
            seed=beginning.seed,
            first_index=beginning.first_episode_index,
            policy=beginning.policy_version,
            env=beginning.environment_version,
            row_step_count=beginning.row_step_count,
            worker_count=beginning.worker_count,
        )

    def deliver(self, batch: rollserve.EpisodeBatch) -> None:
        """Record a message, or all messages of a call together."""
        self._num_bytes += num_bytes(batch)
        self._num_steps += batch.num_steps
        if self._in_full:
            segments = [dataclasses.astuple(segment) for segment in segments_of(batch)]
            self._log.write("message", call=self._number, num_bytes=num_bytes(batch), segments=segments)
        else:
            self._log.write("message", call=self._number, num_bytes=num_bytes(batch))

    def show(self, step: rollserve.DrivenStep) -> None:
        """Record a step that a session shows."""
        digest = step_digest(step) if self._in_full else ""
        self._log.write("step", call=self._number, number=step.number, digest=digest)

    def end(self, outcome: str, account: rollserve.Account | None = None, **fields: Any) -> None:
        """Record the outcome: `ok`, `cancelled`, or the reason of an error."""
        counts: dict[str, Any] | None = None
        if account is not None:
            counts = {name: value for name, value in dataclasses.asdict(account).items() if isinstance(value, int)}
            counts["num_dropped_steps"] = account.num_dropped_steps
        self._log.write(
            "end",
            call=self._number,
            kind=self._kind,
            outcome=outcome,
            account=counts,
            num_steps=self._num_steps,
            num_bytes=self._num_bytes,
            **fields,
        )
