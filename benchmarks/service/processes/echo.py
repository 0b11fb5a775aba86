"""A plain server that answers each message of a stream: `python -m benchmarks.service.processes.echo NUM_BYTES`."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from benchmarks.shared.commands import answer_commands

__all__ = ["echoed"]

_METHOD = "/rollserve.benchmarks.Echo/Echo"
_NUM_WARM_UP = 20


def echoed(address: str, num_bytes: int, num_messages: int) -> list[float]:
    """Return how long each of some messages of `num_bytes` takes to the server and back, one after the other."""
    message, latencies = bytes(num_bytes), []
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with grpc.insecure_channel(address) as channel:
        responses = channel.stream_stream(_METHOD)(iter(requests.get, None))
        for _ in range(_NUM_WARM_UP + num_messages):
            began = time.perf_counter()
            requests.put(message)
            next(responses)
            latencies.append(time.perf_counter() - began)
        requests.put(None)
    return latencies[_NUM_WARM_UP:]


async def _serve(answer: bytes, ports: queue.SimpleQueue[int]) -> None:
    async def respond(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for _request in requests:
            yield answer

    _, service, method = _METHOD.split("/")
    handler = grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(respond)})
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ports.put(port)
    await server.wait_for_termination()


def main() -> None:
    """Serve until the end of standard input; the command `port` says where."""
    ports: queue.SimpleQueue[int] = queue.SimpleQueue()
    serving = _serve(bytes(int(sys.argv[1])), ports)
    threading.Thread(target=lambda: asyncio.run(serving), name="server", daemon=True).start()
    answer: dict[str, Any] = {"port": ports.get()}
    answer_commands({"port": lambda: answer})


if __name__ == "__main__":
    main()
