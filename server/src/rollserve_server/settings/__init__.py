"""The server's settings: one place for their names, types, defaults and meaning.

Each setting is a flag, an environment variable and a key of the configuration file, by one flat name. In the code,
settings stand in groups, and each layer takes its group as it is.
"""

from rollserve_server.settings.environment import (
    AllowSettings,
    EnvironmentSettings,
    ProfileSetting,
    ProfileSettings,
    SandboxSetting,
    WrapperSetting,
)
from rollserve_server.settings.gateway import (
    ClientLimits,
    GatewaySettings,
    IdentitySettings,
    TlsSettings,
    TracingSettings,
    is_loopback,
    is_safe_url,
)
from rollserve_server.settings.groups import FlatField, Group
from rollserve_server.settings.pool import (
    MAX_EVALUATIONS,
    AgentSettings,
    CallSettings,
    HealthSettings,
    MetricsSettings,
    PoolSettings,
    Quota,
    RenderSettings,
    RowSettings,
    SandboxLimits,
    VersionSettings,
    WorkerSettings,
)
from rollserve_server.settings.reloading import Change, Reload
from rollserve_server.settings.server import ProcessSettings, RaySettings, SamplerSettings, Settings, WorkerPlacement

__all__ = [
    "MAX_EVALUATIONS",
    "AgentSettings",
    "AllowSettings",
    "CallSettings",
    "Change",
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
    "Reload",
    "RenderSettings",
    "RowSettings",
    "SamplerSettings",
    "SandboxLimits",
    "SandboxSetting",
    "Settings",
    "TlsSettings",
    "TracingSettings",
    "VersionSettings",
    "WorkerPlacement",
    "WorkerSettings",
    "WrapperSetting",
    "is_loopback",
    "is_safe_url",
]
