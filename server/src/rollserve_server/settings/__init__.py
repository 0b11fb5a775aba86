"""The server's settings: one place for their names, types, defaults and meaning.

Each setting is a flag, an environment variable and a key of the configuration file, by one flat name. In the code,
settings stand in groups, and each layer takes its group as it is.
"""

from rollserve_server.settings.agents import AgentSettings, SandboxLimits, VersionSettings
from rollserve_server.settings.calls import MAX_EVALUATIONS, CallSettings
from rollserve_server.settings.environment import AllowSettings, EnvironmentSettings, WrapperSetting
from rollserve_server.settings.gateway import ClientLimits, GatewaySettings
from rollserve_server.settings.groups import FlatField, Group, parse_yaml
from rollserve_server.settings.identity import IdentitySettings
from rollserve_server.settings.metrics import MetricsSettings
from rollserve_server.settings.pool import PoolSettings
from rollserve_server.settings.process import ProcessSettings
from rollserve_server.settings.profiles import ProfileSetting, ProfileSettings
from rollserve_server.settings.quota import Quota
from rollserve_server.settings.ray import RaySettings, WorkerPlacement
from rollserve_server.settings.rendering import RenderSettings
from rollserve_server.settings.samplers import SamplerSettings
from rollserve_server.settings.server import Settings
from rollserve_server.settings.tls import TlsSettings
from rollserve_server.settings.tracing import TracingSettings
from rollserve_server.settings.workers import HealthSettings, RowSettings, WorkerSettings

__all__ = [
    "MAX_EVALUATIONS",
    "AgentSettings",
    "AllowSettings",
    "CallSettings",
    "ClientLimits",
    "EnvironmentSettings",
    "FlatField",
    "GatewaySettings",
    "Group",
    "HealthSettings",
    "IdentitySettings",
    "MetricsSettings",
    "PoolSettings",
    "ProcessSettings",
    "ProfileSetting",
    "ProfileSettings",
    "Quota",
    "RaySettings",
    "RenderSettings",
    "RowSettings",
    "SamplerSettings",
    "SandboxLimits",
    "Settings",
    "TlsSettings",
    "TracingSettings",
    "VersionSettings",
    "WorkerPlacement",
    "WorkerSettings",
    "WrapperSetting",
    "parse_yaml",
]
