"""The journal: what of a sampler outlives its server, and which server it belongs to."""
