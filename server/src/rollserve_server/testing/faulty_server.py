"""A server on this machine that makes faults on demand, for the duration of a block."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rollserve_server.local import LocalServer, local_server

__all__ = ["FaultyServer", "faulty_server"]

_OPTIONS = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2", "--seed", "0")
"""Options of each server, which its own options go before."""


class FaultyServer:
    """A running server with threads as workers, which makes faults on demand.

    A fault is asked for and waits until an RPC is due to have it. A reset drops the faults that wait.

    Attributes:
        address: `host:port`, for `rollserve.connect`.
        process: the server's process.
    """

    def __init__(self, server: LocalServer) -> None:
        self.address = server.address
        self.process = server.process
        self._server = server

    def kill_worker(self, worker_index: int | None = None, *, after_orders: int = 0, times: int = 1) -> None:
        """Have the next call that uses a worker lose it, with all that the worker holds.

        The call delivers the same episodes as without the fault, and its account counts the lost ones as retried.

        Args:
            worker_index: index of the worker; None for the first one that the call uses. A short call does not use all.
            after_orders: number of orders that it carries out before: in a session, one for each step.
            times: number of workers to lose, one after the other.
        """
        self._ask("kill-worker", worker_index=worker_index, after_orders=after_orders, times=times)

    def break_stream(self, *, after_messages: int = 1, times: int = 1) -> None:
        """Have the next stream of a call that samples or drives end with UNAVAILABLE, as a lost connection does.

        Args:
            after_messages: number of messages with steps that arrive before. A stream that has fewer ends before its
                account.
            times: number of streams that break; a call that resumes a stream has another one.
        """
        self._ask("break-stream", after_messages=after_messages, times=times)

    def refuse_update(self, update: Literal["agent", "environment"] = "agent", *, times: int = 1) -> None:
        """Have the next update fail with the reason `AGENT_REFUSED` or `ENV_REFUSED`; the sampler stays as it was.

        Args:
            update: what is updated, by whichever RPC.
            times: number of updates that fail.
        """
        self._ask("refuse-update", update=update, times=times)

    def delay(self, seconds: float, *, rpc: str = "", times: int = 1) -> None:
        """Have the next RPC wait before the server begins to answer it.

        Args:
            seconds: how long it waits.
            rpc: the RPC's name, such as `ObtainSamples`; empty for any.
            times: number of RPCs that wait.
        """
        self._ask("delay", seconds=seconds, rpc=rpc, times=times)

    def ask(self, fault: Mapping[str, Any]) -> None:
        """Ask for a fault by its values as JSON has them, such as `{"fault": "break-stream", "after_messages": 3}`.

        Raises:
            RuntimeError: there is no such fault, or the server has ended.
        """
        self._server.request(f"fault {json.dumps(fault)}")

    def faults(self) -> dict[str, list[dict[str, Any]]]:
        """Return the faults since the last reset, as JSON has them: `waiting` ones, and `made` ones."""
        return json.loads(self._server.request("faults"))  # type: ignore[no-any-return]

    def check_faults(self) -> None:
        """Check that no fault waits.

        Raises:
            AssertionError: some do, so that whoever asked for them has not seen them.
        """
        waiting = self.faults()["waiting"]
        if waiting:
            raise AssertionError(f"faults: expected all to be made, got {len(waiting)} that wait: {waiting}")

    def reset(self) -> None:
        """Bring the sampler to where it was when the server had just started, and drop all faults.

        Raises:
            RuntimeError: as `LocalServer.reset`.
        """
        self._server.request("forget-faults")
        self._server.reset()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the server; return its exit status once it has ended. See `LocalServer.stop`."""
        return self._server.stop(number)

    def __repr__(self) -> str:
        return repr(self._server).replace("LocalServer", "FaultyServer", 1)

    def _ask(self, fault: str, **values: object) -> None:
        self.ask({"fault": fault, **values})


@contextlib.contextmanager
def faulty_server(
    *options: str, log: str | os.PathLike[str] | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[FaultyServer]:
    """Start a server with threads as workers on a free port of this machine, and end it after the block.

    Args:
        options: options of `rollserve-server`, which go before `--env CartPole-v1 --workers 2 --seed 0`. The backend is
            always `in-process`.
        log: path of a file for the server's log; None for this process's standard error, with warnings alone.
        environment: environment variables for the server, beside the present ones.

    Raises:
        RuntimeError: the server did not start; see `local_server`.
    """
    defaults = _OPTIONS if log is not None else (*_OPTIONS, "--log-level", "WARNING")
    module = "rollserve_server.testing.serve"
    with local_server(*defaults, *options, log=log, environment=environment, module=module) as server:
        yield FaultyServer(server)
