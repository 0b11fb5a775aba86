"""How calls are made, watched, resumed and read; not part of the public interface."""
