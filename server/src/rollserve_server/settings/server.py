"""Settings of a server."""

from __future__ import annotations

from rollserve_server.settings.environment import EnvironmentSettings
from rollserve_server.settings.gateway import GatewaySettings
from rollserve_server.settings.groups import Group
from rollserve_server.settings.pool import PoolSettings
from rollserve_server.settings.process import ProcessSettings
from rollserve_server.settings.ray import RaySettings
from rollserve_server.settings.samplers import SamplerSettings

__all__ = ["Settings"]


class Settings(Group):
    """Settings of a server."""

    environment: EnvironmentSettings
    gateway: GatewaySettings = GatewaySettings()
    pool: PoolSettings = PoolSettings()
    samplers: SamplerSettings = SamplerSettings()
    ray: RaySettings = RaySettings()
    process: ProcessSettings = ProcessSettings()
