"""A server whose streams are scripted by a test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
from raw_calls import SERVICE

__all__ = ["abort", "scripted_server"]

Script = Callable[[grpc.ServicerContext], Iterable[bytes]]
"""Responses of one call, serialized."""


@contextlib.contextmanager
def scripted_server(
    port: int = 0, *, answer: Callable[[grpc.ServicerContext], bytes] = lambda _: b"", **scripts: Script
) -> Iterator[str]:
    """Yield the address of a server that answers calls of streaming methods by scripts.

    Args:
        port: port where it listens; 0 for a free one.
        answer: returns the serialized response of a call of ListAgentVersions.
        scripts: scripts by the names of the methods.
    """

    def handler(script: Script) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_stream_rpc_method_handler(lambda _, context: iter(script(context)))

    handlers = {name: handler(script) for name, script in scripts.items()}
    handlers["ListAgentVersions"] = grpc.unary_unary_rpc_method_handler(lambda _, context: answer(context))
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE.strip("/"), handlers)])
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def abort(context: grpc.ServicerContext, reason: str, text: str) -> NoReturn:
    """End a call with UNAVAILABLE."""
    context.set_trailing_metadata((("rollserve-reason", reason),))
    context.abort(grpc.StatusCode.UNAVAILABLE, text)
