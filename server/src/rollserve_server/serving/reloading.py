"""Reloads of settings while the server runs: the configuration file is read again, and reloadable settings are used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rollserve_server.errors import DomainError
from rollserve_server.futures import in_background
from rollserve_server.gateway import settings_changes
from rollserve_server.serving.build import allowed_paths, host_names, pool_settings, warn_of_settings
from rollserve_server.serving.checks import check_reloadable, find_profiles
from rollserve_server.settings import Reload

if TYPE_CHECKING:
    from rollserve_server.gateway import Gateway, Relay
    from rollserve_server.samplers import Samplers
    from rollserve_server.settings import Settings

__all__ = ["ReadSettings", "Reloading"]

_log = logging.getLogger(__name__)
ReadSettings = Callable[[], "Settings"]
"""Returns the settings by the present contents of the configuration file; raises InvalidValueError."""


class Reloading:
    """Settings of a running server, which are read again on SIGHUP and by the RPC `ReloadSettings`."""

    def __init__(
        self, settings: Settings, read: ReadSettings, samplers: Samplers, gateway: Gateway, relay: Relay
    ) -> None:
        """Reload from now on.

        Args:
            settings: the settings of the start.
            read: reads them again.
            samplers: the samplers that use them.
            gateway: the gateway that uses them.
            relay: the relay that uses them.
        """
        self._settings = settings
        self._read = read
        self._samplers = samplers
        self._gateway = gateway
        self._relay = relay
        self._reloading = asyncio.Lock()
        gateway.on_reload(self._reload)

    def on_hang_up(self) -> None:
        """Reload in the background, because of SIGHUP."""
        in_background(self._on_signal())

    async def _reload(self) -> Reload:
        """Use what the file says now, and return what has changed.

        Raises:
            DomainError: a setting is invalid. Nothing has changed then.
        """
        async with self._reloading:
            reload = await asyncio.to_thread(self._checked)
            settings = reload.settings
            gateway = settings.gateway, allowed_paths(settings)
            self._gateway.use(*gateway, allow_free_env=settings.pool.profiles.allow_free_env)
            await self._relay.allow(host_names(settings))
            self._samplers.use(settings.samplers, pool_settings(settings))
            logging.getLogger("rollserve_server").setLevel(settings.process.log_level)
            self._settings = settings
        changed, needs_restart = settings_changes(reload).values()
        _log.info("settings reloaded", extra={"changed": changed, "needs_restart": needs_restart})
        warn_of_settings(settings)
        return reload

    def _checked(self) -> Reload:
        reload = Reload.of(self._settings, self._read())
        check_reloadable(reload.settings)
        find_profiles(reload.settings)
        return reload

    async def _on_signal(self) -> None:
        try:
            reload = await self._reload()
        except (DomainError, OSError) as error:
            _log.error("settings not reloaded", extra={"error": str(error)})  # the text says all: no traceback
        else:
            self._gateway.audit_signal("SIGHUP", settings_changes(reload))
