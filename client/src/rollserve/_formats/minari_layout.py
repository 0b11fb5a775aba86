"""Names and shapes in the files of a Minari dataset."""

from __future__ import annotations

from rollserve_wire.columns import PER_STEP

__all__ = [
    "AGENT",
    "ATTRIBUTES",
    "DATA_FILE",
    "HEADERS",
    "METADATA_FILE",
    "NUMBERS",
    "RECEIPT",
    "RECEIPTS",
    "group_of",
    "hdf5_path",
]

METADATA_FILE, DATA_FILE = "metadata.json", "main_data.hdf5"
RECEIPTS = "rollserve_receipts"
"""Name in the metadata of the first receipts, a list of texts: of datasets by earlier releases."""
RECEIPT = "rollserve_receipt"
"""Name in an episode's group of the receipt of this episode and those after it, one text."""
HEADERS = ("policy_versions", "episode_indices")
"""Headers that the attributes `rollserve_NAME` of an episode hold."""
AGENT = "agent/"
"""Prefix of infos that are the agent's."""
NUMBERS = [name for name, spec in PER_STEP.items() if spec.kind == "numbers" and not spec.original_of]
"""Columns of steps that are datasets of their own names; the environment's own values where transforms change them."""
ATTRIBUTES = {"env_seeds": "seed", **{name: f"rollserve_{name}" for name in HEADERS}}
"""Names of the attributes of episodes that hold headers."""


def group_of(episode: int) -> bytes:
    """Return the name of the group of an episode, given its number in the dataset."""
    return b"episode_%d" % episode


def hdf5_path(field: str, parts: tuple[str | int, ...]) -> bytes:
    """Return the path of a leaf in the group of an episode."""
    names = (f"_index_{part}" if isinstance(part, int) else part for part in parts)
    return "/".join((field, *names)).encode()
