"""Replay: past steps, kept to learn from again."""

from rollserve.replay.replay_buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
