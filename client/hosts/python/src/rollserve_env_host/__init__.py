"""A host of environments: a process of its own whose rows workers of Rollserve step."""

from rollserve_env_host.environments import Environment, environment_factory
from rollserve_env_host.serving import listen, serve

__all__ = ["Environment", "environment_factory", "listen", "serve"]
