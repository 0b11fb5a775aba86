"""Streams to a gateway: a host opens them, where workers cannot start it or connect to it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import queue
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import grpc

from rollserve_env_host.environments import versions
from rollserve_env_host.messages import row_service_pb2, rows_pb2
from rollserve_env_host.rows import Rows

if TYPE_CHECKING:
    from rollserve_env_host.serving import Make

__all__ = ["Gateway", "RefusedError", "connect", "connect_seats"]

_RPC = "/rollserve.rows.v1.RowService/ServeRows"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a pause after a lost connection would be that of later channels, too
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_FINAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Statuses that another attempt would meet again."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 2.0
_RESTART_SECONDS = 1.0
"""How long a process of a seat is away at least that has ended."""
_LOCAL = re.compile(r"(127(\.\d+){3}|localhost|\[::1\]):\d+$|unix:")
"""Addresses of this machine."""


class RefusedError(Exception):
    """The gateway refuses the host."""


class Gateway(NamedTuple):
    """The gateways of a server, and how a host connects to them.

    Attributes:
        address: HOST:PORT; several ones, of which one serves at a time, with commas between them.
        token_file: file with the token that the server asks for; empty for none. It is read again for each connection.
        ca: PEM file with the authority of the server's certificate; empty to connect without TLS.
        cert, key: PEM files with a certificate of the host's own, and its key; empty for none.
    """

    address: str
    token_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def addresses(self) -> Sequence[str]:
        """Return all addresses; raise RefusedError for one that a token cannot be sent to."""
        addresses = self.address.split(",")
        if self.token_file and not self.ca and not all(map(_LOCAL.match, addresses)):
            text = "token: expected TLS (--tls-ca) beyond this machine, where others could read it, got {}"
            raise RefusedError(text.format(self.address))
        return addresses

    @contextlib.contextmanager
    def channel(self, address: str) -> Iterator[grpc.Channel]:
        """Yield a channel to one of them, which is closed with the block."""
        options: List[Tuple[str, Any]] = list(_OPTIONS)
        if _LOCAL.match(address) or not self.ca:  # a proxy would read a token that is not encrypted
            options.append(("grpc.enable_http_proxy", 0))
        if self.ca:
            files = (_content(each) if each else None for each in (self.ca, self.key, self.cert))
            channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*files), options)
        else:
            channel = grpc.insecure_channel(address, options)
        with channel:
            yield channel

    def metadata(self) -> Sequence[Tuple[str, str]]:
        """Return the metadata of a stream."""
        if not self.token_file:
            return ()
        return (("authorization", "Bearer {}".format(_content(self.token_file).decode().strip())),)


def connect(make: Make, env: str, gateway: Gateway, name: str) -> None:
    """Serve workers, one after the other, over streams to a gateway, for ever.

    The environment `host:NAME` of the server's samplers is then this host's. A stream that ends, because its worker has
    left or the gateway is gone, is followed by another one.

    Args:
        make: makes an environment with arguments.
        env: name of the environment, for people.
        gateway: the gateway.
        name: the name.

    Raises:
        RefusedError: the gateway does not take the host, and would not the next time.
        OSError: a file of the gateway cannot be read.
    """
    # Once, because an environment may import further packages when it is made.
    hello = rows_pb2.Hello(protocol_version=1, name=env, versions=versions())
    host = _Host(make, row_service_pb2.ServeRowsRequest(name=name, message=hello.SerializeToString()))
    for address in itertools.cycle(gateway.addresses()):
        try:
            with gateway.channel(address) as channel:
                while True:
                    host.serve(channel, gateway.metadata(), address)
        except grpc.RpcError as error:
            text = "{} at {}: {}".format(error.code().name, address, error.details())
            if error.code() in _FINAL:
                raise RefusedError(text) from None
            print(text, "(trying again)", file=sys.stderr, flush=True)
        host.rest()


def connect_seats(find: Callable[[], Make], env: str, gateway: Gateway, name: str, seats: int) -> None:
    """Serve as many workers at the same time as there are seats, each in a process of its own, which is kept alive.

    Args:
        find: returns what makes an environment with arguments; a process gets it pickled.
        env: name of the environment, for people.
        gateway: the gateway.
        name: the name of the hosts.
        seats: the number of seats.

    Raises:
        RefusedError: the gateway does not take the hosts; the processes have printed why.
    """
    context = multiprocessing.get_context("spawn")
    arguments = find, env, gateway, name
    processes: Dict[int, Any] = {}
    while True:
        for _ in range(seats - len(processes)):
            process = context.Process(target=_run_seat, args=arguments, daemon=True)
            process.start()
            processes[process.sentinel] = process
        for sentinel in multiprocessing.connection.wait(list(processes)):
            ended = processes.pop(sentinel)  # type: ignore[call-overload]
            ended.join()
            if ended.exitcode == 1:
                raise RefusedError("a seat has ended, for the reason above")
        time.sleep(_RESTART_SECONDS)


def _run_seat(find: Callable[[], Make], env: str, gateway: Gateway, name: str) -> None:
    """Be the process of a seat, until the one that has started it ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    try:
        connect(find(), env, gateway, name)
    except KeyboardInterrupt:
        pass
    except RefusedError as error:
        sys.exit(str(error))


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(0)


class _Host:
    """What serves workers over streams, and rests after streams that have failed, the longer the more often."""

    def __init__(self, make: Make, first: Any) -> None:
        """Serve with environments that `make` makes, in streams with this first message."""
        self._make, self._first = make, first
        self._pause_seconds = 0.0
        self._is_known = False  # whether the gateway has taken the host

    def serve(self, channel: grpc.Channel, metadata: Sequence[Tuple[str, str]], address: str) -> None:
        """Serve one worker, until it leaves; raise grpc.RpcError if the gateway is gone, or refuses the host."""
        open_stream = channel.stream_stream(
            _RPC,
            row_service_pb2.ServeRowsRequest.SerializeToString,
            row_service_pb2.ServeRowsResponse.FromString,
        )
        sent: queue.Queue[Optional[Any]] = queue.Queue()
        sent.put(self._first)
        rows = Rows(self._make)
        try:
            for received in open_stream(iter(sent.get, None), metadata=metadata):
                if not received.message:
                    self._begin(address)
                    continue
                answer = rows.answer(rows_pb2.Request.FromString(received.message))
                sent.put(row_service_pb2.ServeRowsRequest(message=answer.SerializeToString()))
        finally:
            sent.put(None)
            rows.close()

    def rest(self) -> None:
        """Wait before another attempt."""
        self._is_known = False
        self._pause_seconds = min(2 * self._pause_seconds or _FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        time.sleep(self._pause_seconds)

    def _begin(self, address: str) -> None:
        """Say that the gateway has taken the host, unless it had."""
        if not self._is_known:
            print("connected to {} as {}".format(address, self._first.name), flush=True)
        self._is_known, self._pause_seconds = True, 0.0


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
