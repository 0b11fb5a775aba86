"""The gRPC server: its services, where it listens, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from rollserve_server.datasets import DataFolder
from rollserve_server.errors import StoppingError
from rollserve_server.futures import in_background
from rollserve_server.gateway.access import Access
from rollserve_server.gateway.audit import AuditLog
from rollserve_server.gateway.certificates import CertificateFiles
from rollserve_server.gateway.connections import ConnectionLimit, Traffic
from rollserve_server.gateway.health import HEALTH_SERVICE, MAX_CHECK_BYTES, Health
from rollserve_server.gateway.messages.environments import PrivateArguments
from rollserve_server.gateway.reflection import REFLECTION_RPC, REFLECTION_SERVICES, Reflection
from rollserve_server.gateway.requests.intake import Intake
from rollserve_server.gateway.requests.reader import RequestReader
from rollserve_server.gateway.row_service import ROW_SERVICE, SERVE_RPC, RowService
from rollserve_server.gateway.rpcs.open_rpcs import OpenRpcs
from rollserve_server.gateway.rpcs.places import Places
from rollserve_server.gateway.service import RPCS, SAMPLER_SERVICE, SamplerService
from rollserve_server.gateway.shared_memory import SamplerRings
from rollserve_server.identity import Authentication, ExpiryLog, Scope
from rollserve_server.metrics import Metrics
from rollserve_server.tracing import Tracing
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_server.gateway.relay import Relay
    from rollserve_server.identity import Expiry
    from rollserve_server.samplers import Samplers
    from rollserve_server.settings import ClientLimits, GatewaySettings, Reload
    from rollserve_wire.environments import EnvSpec


__all__ = ["Gateway", "Interceptor"]


Interceptor = grpc.aio.ServerInterceptor
"""Code between gRPC and the handlers of RPCs."""

_SERVICES = ("", SAMPLER_SERVICE)
"""Names that the health service knows; the empty one stands for the whole server."""
_REQUEST_PATIENCE_SECONDS = 5.0
"""How long a request may take to arrive when another RPC needs the place."""
_FLUSH_SECONDS = 1.0
"""How long the statuses of ended RPCs may take to reach their clients."""
_EXPIRY_LOOK_SECONDS = 3600.0
_ACCEPTED_SECONDS = 0.2
"""How long gRPC may take to start the RPCs in its queue; when the server stops, it cancels those left there."""

_FOREVER = 2**31 - 1
"""Number of milliseconds that gRPC takes for no limit."""
_MIN_PING_SECONDS = 0.5
"""Least time between the pings of a client; gRPC closes the connection of a client that pings more often. Clients are
told 1 s, which leaves room for pings that arrive closer together than they were sent."""

_IDENTITY, _GZIP = 1 << 0, 1 << 2
"""Compressions of requests, by gRPC's numbers. Others end with UNIMPLEMENTED, as gRPC specifies."""


# gRPC logs a traceback when a client leaves while a message is being sent to it, which is the client's right.
logging.getLogger("grpc._cython.cygrpc").addFilter(lambda record: "ExecuteBatchError" not in record.getMessage())


class Gateway:
    """Serves samplers over gRPC.

    Attributes:
        port: port where the server listens, after `start`.
        metrics: counts what it does.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        samplers: Samplers,
        env: EnvSpec,
        relay: Relay,
        allowed_paths: Sequence[Path] = (),
        *,
        allow_free_env: bool = True,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        """Prepare to serve samplers.

        Args:
            settings: where to listen, and limits for clients.
            samplers: the samplers.
            env: the environment of the settings, whose arguments clients do not get to see.
            relay: where workers reach the hosts that open streams.
            allowed_paths: files and folders that arguments of environments and agents may name.
            allow_free_env: whether requests may name environments of no profile.
            interceptors: see each RPC before the services do.

        Raises:
            InvalidValueError: the files with the certificate, tokens, keys or principals cannot be used.
            NotFoundError: traces are to be sent, and OpenTelemetry is not installed.
            OSError: the settings ask for shared memory, which this system does not have; or the audit log cannot be
                opened.
        """
        self._settings = settings
        self._expiry_log = ExpiryLog()
        self._certificates = None if settings.tls.tls_cert is None else CertificateFiles(settings.tls, self._expiry_log)
        self._samplers = samplers
        limits = settings.clients
        options = _channel_options(limits, settings.max_request_bytes)
        self._server = grpc.aio.server(interceptors=interceptors, options=options)
        self.metrics = Metrics(samplers, self._expiries, relay.num_seats)
        self._places = Places(
            "RPCs",
            limits.max_rpcs,
            max_of_peer=limits.max_peer_rpcs,
            patience_seconds=_REQUEST_PATIENCE_SECONDS,
        )
        others = {REFLECTION_RPC: Scope.STATUS, SERVE_RPC: Scope.ENV_SERVE}
        scopes = {rpc.name: rpc.scope for rpc in RPCS} | others
        of_server = {rpc.name for rpc in RPCS if rpc.is_of_server} | others.keys()
        self._access = Access(self._authentication(settings), samplers.default.name, scopes, of_server)
        self._tracing = None if settings.tracing.endpoint_of("traces") is None else Tracing(settings.tracing)
        self._rpcs = OpenRpcs(
            limits.client_stall_seconds, self._places, self.metrics, self._access, _audit_log(settings), self._tracing
        )
        intake = Intake(settings.max_request_bytes, limits.max_pending_request_bytes, Traffic().num_received)
        rings = SamplerRings(settings.shared_memory_bytes, samplers.max_samplers)
        for forget in (rings.forget, self.metrics.forget):
            samplers.on_removed(forget)
        self._reader = RequestReader(samplers, allowed_paths)
        self._service = SamplerService(
            self._rpcs,
            intake,
            self._reader,
            samplers,
            rings,
            PrivateArguments(env),
            self.metrics,
            DataFolder(settings.data_dir),
            allow_free_env=allow_free_env,
            max_renders=settings.max_renders,
        )
        self._health = Health(_SERVICES, limits.client_stall_seconds, intake, self.metrics)
        self._health_listener = None
        if settings.health_listen is not None:
            self._health_listener = _HealthListener(settings.health_listen, limits, _SERVICES, self.metrics)
        rows = RowService(relay, self._rpcs, intake, settings.max_request_bytes)
        services = (SAMPLER_SERVICE, ROW_SERVICE, HEALTH_SERVICE, *REFLECTION_SERVICES)
        reflection = Reflection(services, self._rpcs, intake)
        handlers = (self._service.handler(), rows.handler(), self._health.handler(), *reflection.handlers())
        self._server.add_generic_rpc_handlers(handlers)
        self._hurried = asyncio.Event()
        self._watching: list[asyncio.Task[None]] = []
        self._connection_limit: ConnectionLimit | None = None
        self.port = 0

    async def start(self) -> None:
        """Start to listen and to serve.

        Raises:
            OSError: the server cannot listen there.
        """
        credentials = None if self._certificates is None else self._certificates.credentials()
        self.port = _listen(self._server, self._settings.listen, "listen", credentials)
        if self._health_listener is not None:
            await self._health_listener.start()
            self._health_listener.health.start_serving()
        await self._server.start()
        self._connection_limit = ConnectionLimit(self.port, self._settings.clients.max_peer_connections)
        self._watching = [
            asyncio.create_task(self._connection_limit.keep()),
            asyncio.create_task(self._watch_expiries()),
        ]
        self._health.start_serving()
        in_background(self._access.authentication.refresh())

    @property
    def grace_seconds(self) -> float:
        """How long running calls may go on once the server stops."""
        return self._settings.grace_seconds

    def on_reload(self, function: Callable[[], Awaitable[Reload]]) -> None:
        """Have `ReloadSettings` call a function, which reads the settings again and uses them."""
        self._service.reload = function

    def use(self, settings: GatewaySettings, allowed_paths: Sequence[Path], *, allow_free_env: bool) -> None:
        """Use the reloadable settings from now on: RPCs that run keep theirs. Arguments as of the constructor.

        Raises:
            InvalidValueError: a file with tokens, keys or principals cannot be used. Nothing has changed then.
            OSError: the audit log cannot be opened. Nothing has changed then.
        """
        authentication = self._access.authentication
        if settings.identity != self._settings.identity:  # else the keys of an issuer stay known
            authentication = self._authentication(settings)
        former_log = self._rpcs.audit_log
        if settings.audit_log != self._settings.audit_log:
            self._rpcs.audit_log = _audit_log(settings)
            if former_log is not None:
                former_log.close()
        self._access.authentication = authentication
        in_background(authentication.refresh())
        self._settings, limits = settings, settings.clients
        self._places.max_in_all, self._places.max_of_peer = limits.max_rpcs, limits.max_peer_rpcs
        if self._connection_limit is not None:
            self._connection_limit.max_peer_connections = limits.max_peer_connections
        self._rpcs.stall_seconds = limits.client_stall_seconds
        self._health.limit(limits.client_stall_seconds)
        if self._health_listener is not None:
            self._health_listener.health.limit(limits.client_stall_seconds)
        self._reader.allowed_paths = allowed_paths
        self._service.allow_free_env = allow_free_env

    def audit_signal(self, signal: str, changes: Mapping[str, object]) -> None:
        """Add a line about a signal to the audit log, if there is one."""
        if self._rpcs.audit_log is not None:
            self._rpcs.audit_log.write_signal(signal, changes)

    def hurry(self) -> None:
        """End the grace period: calls that still run get their status now, or as soon as `stop` is called."""
        self._hurried.set()

    async def stop(self) -> None:
        """Stop serving: accept no more calls, wait for the running ones, and end what is left after the grace period.

        Queued calls end at once. Health reports at once that the server does not serve.
        """
        grace = 0.0 if self._hurried.is_set() else self._settings.grace_seconds
        self._health.stop_serving()
        if self._health_listener is not None:
            self._health_listener.health.stop_serving()
        self._samplers.drain(StoppingError("the server is stopping and starts no more calls"))
        if grace:
            await asyncio.sleep(_ACCEPTED_SECONDS)
        # From here on gRPC accepts no more connections and RPCs.
        stopping = asyncio.create_task(self._server.stop(grace + _FLUSH_SECONDS))
        try:
            await self._wait_for_calls(grace)
            self._rpcs.end(StoppingError("the server is stopping, and the call has not ended in its grace period"))
            # Watchers of health never end by themselves.
            await asyncio.wait({stopping}, timeout=_FLUSH_SECONDS)
            await self._server.stop(None)
        finally:
            stopping.cancel()
            for task in self._watching:
                task.cancel()
            if self._health_listener is not None:
                await self._health_listener.stop()
            if self._rpcs.audit_log is not None:
                self._rpcs.audit_log.close()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)

    def _authentication(self, settings: GatewaySettings) -> Authentication:
        return Authentication(settings.identity, self.metrics.count_fetch)

    def _expiries(self) -> Sequence[Expiry]:
        certificates = () if self._certificates is None else self._certificates.expiries()
        return [*certificates, *self._access.authentication.expiries()]

    async def _watch_expiries(self) -> None:
        """Log what expires soon, for ever."""
        while True:
            self._expiry_log.note(self._expiries())
            await asyncio.sleep(_EXPIRY_LOOK_SECONDS)

    async def _wait_for_calls(self, seconds: float) -> None:
        """Wait until no call runs, the time is over, or `hurry` is called."""
        ended, hurried = (
            asyncio.create_task(self._rpcs.wait_until_none(seconds)),
            asyncio.create_task(self._hurried.wait()),
        )
        await asyncio.wait({ended, hurried}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        hurried.cancel()


class _HealthListener:
    """A server of gRPC that has the health service alone, with connections and places of its own."""

    def __init__(self, address: str, limits: ClientLimits, services: Collection[str], metrics: Metrics) -> None:
        """Prepare to listen.

        Args:
            address: where to listen, as HOST:PORT.
            limits: limits of connections.
            services: names of the services.
            metrics: counts the RPCs.
        """
        self._address = address
        self._server = grpc.aio.server(options=_channel_options(limits, MAX_CHECK_BYTES))
        self.health = Health(services, limits.client_stall_seconds, Intake(MAX_CHECK_BYTES, 0), metrics)
        self._server.add_generic_rpc_handlers((self.health.handler(),))

    async def start(self) -> None:
        """Start to listen.

        Raises:
            OSError: the server cannot listen there.
        """
        _listen(self._server, self._address, "health_listen")
        await self._server.start()

    async def stop(self) -> None:
        """End all RPCs, and listen no more."""
        await self._server.stop(None)


def _listen(
    server: grpc.aio.Server, address: str, setting: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Have a server listen at an address, which a setting names, and return the port; without credentials, in plain.

    Raises:
        OSError: the server cannot listen there.
    """
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        text = mismatch("an address to listen at", address, "is the port in use?")
        raise OSError(f"{setting}: {text}") from error


def _audit_log(settings: GatewaySettings) -> AuditLog | None:
    return None if settings.audit_log is None else AuditLog(settings.audit_log, settings.audit_log_bytes)


def _channel_options(limits: ClientLimits, max_request_bytes: int) -> list[tuple[str, int]]:
    """Return the options of a server of gRPC, by gRPC's names."""
    return [
        ("grpc.max_receive_message_length", max_request_bytes),
        # Requests are decompressed within their own limits, by `requests/intake.py`.
        ("grpc.per_message_decompression", 0),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY | _GZIP),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.server_handshake_timeout_ms", _milliseconds(limits.handshake_seconds)),
        ("grpc.max_concurrent_streams", limits.max_connection_rpcs),
        ("grpc.keepalive_time_ms", _milliseconds(limits.keepalive_seconds)),
        ("grpc.keepalive_timeout_ms", _milliseconds(limits.keepalive_timeout_seconds)),
        ("grpc.http2.ping_timeout_ms", _milliseconds(limits.keepalive_timeout_seconds)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(_MIN_PING_SECONDS)),
        # Off: with the probe, a connection moves megabytes of requests into memory before anything reads them.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_connection_idle_ms", _milliseconds(limits.max_connection_idle_seconds)),
        ("grpc.max_connection_age_ms", _milliseconds(limits.max_connection_age_seconds)),
        ("grpc.max_connection_age_grace_ms", _milliseconds(limits.max_connection_age_grace_seconds)),
    ]


def _milliseconds(seconds: float) -> int:
    """Return a limit in milliseconds; 0 seconds mean no limit."""
    return min(round(seconds * 1000), _FOREVER) or _FOREVER
