"""EnvPool's environments as vector environments."""
