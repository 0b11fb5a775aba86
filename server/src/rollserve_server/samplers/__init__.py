"""The samplers of a server: `default` and the ones that clients create, each with a pool of its own."""

from rollserve_server.samplers.sampler import Sampler, SamplerRequest
from rollserve_server.samplers.samplers import Samplers

__all__ = ["Sampler", "SamplerRequest", "Samplers"]
