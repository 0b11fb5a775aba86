"""YAML without keys that are given twice."""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["parse_yaml"]


class _Loader(yaml.SafeLoader):
    """A loader that refuses a key that is given twice; YAML's own takes the last one."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping, before keys of others are merged into it."""
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in keys:
                    text = f"expected each key once, got {key.value!r} twice"
                    raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
                keys.add((key.tag, key.value))
        return node


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text; raise yaml.YAMLError if it is none, or has a key twice."""
    return yaml.load(text, _Loader)  # noqa: S506  # it is a safe one
