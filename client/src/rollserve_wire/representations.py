"""Values as texts of bounded length, for `repr`, and as tables for notebooks."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

__all__ = ["briefly", "html_table", "value_html"]

_MAX_CHARACTERS = 199
_MAX_PART = 60
"""Characters of one attribute's value."""
_MAX_ELEMENTS, _MAX_DEPTH = 4, 2

_Class = TypeVar("_Class", bound=type)


def briefly(cls: _Class) -> _Class:
    """Give a dataclass or named tuple a `repr` of less than 200 characters, whatever its attributes hold.

    Arrays are shown by dtype and shape, bytes by their number. Attributes with default values are left out if there is
    not enough room.
    """
    cls.__repr__ = _representation  # type: ignore[assignment]
    return cls


def value_html(value: Any) -> str:
    """Return a dataclass as a table of its attributes, without attributes that are None or empty."""
    rows = [(name, _cell(each)) for name, each, _ in _attributes(value) if not _is_empty(each)]
    return f'<div class="rollserve-value"><strong>{type(value).__name__}</strong>{html_table((), rows)}</div>'


def html_table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table that is legible on light and dark pages; texts are escaped."""
    cell = '<{0} style="text-align: left; white-space: nowrap">{1}</{0}>'
    lines = ["".join(cell.format("th", html.escape(head)) for head in heads)] if heads else []
    lines += ["".join(cell.format("td", html.escape(text)) for text in row) for row in rows]
    rows_text = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table style="color: inherit; font-size: inherit">{rows_text}</table>'


def _representation(self: Any) -> str:
    name = type(self).__qualname__
    parts = [(f"{attribute}={_brief(value)}", is_default) for attribute, value, is_default in _attributes(self)]
    texts = [text for text, _ in parts]
    if len(name) + len(", ".join(texts)) + 2 > _MAX_CHARACTERS:
        texts = [text for text, is_default in parts if not is_default]
    room = _MAX_CHARACTERS - len(name) - len("(, …)")
    while len(", ".join(texts)) > room:
        texts = [*texts[:-1], "…"] if texts[-1] != "…" else [*texts[:-2], "…"]
    return f"{name}({', '.join(texts)})"


def _attributes(value: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield name, value, and whether it is the default, of each attribute of a dataclass or named tuple."""
    if not dataclasses.is_dataclass(value):
        yield from ((name, getattr(value, name), False) for name in value._fields)
        return
    for field in dataclasses.fields(value):
        if field.repr:
            each = getattr(value, field.name)
            is_plain = each is None or isinstance(each, bool | int | float | str)
            is_default = is_plain and field.default is not dataclasses.MISSING and each == field.default
            yield field.name, each, is_default or (not is_plain and _is_empty(each))


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping | tuple | list | str | bytes) and not value)


def _brief(value: Any, depth: int = 0) -> str:
    """Return a value's text, of at most 60 characters."""
    match value:
        case np.ndarray():
            text = f"<{value.dtype} {value.shape}>"
        case bytes() if len(value) > _MAX_PART // 4:
            text = f"<{len(value)} bytes>"
        case str() if len(value) > _MAX_PART:
            text = repr(f"{value[: _MAX_PART - 3]}…")
        case Mapping() | list() | tuple() | set() | frozenset() if not hasattr(value, "_fields"):
            text = _brief_elements(value, depth)
        case int() if not isinstance(value, bool) and value.bit_length() > 4 * _MAX_PART:
            text = f"<integer of {value.bit_length()} bits>"
        case _:
            text = repr(value)
    return text if len(text) <= _MAX_PART else f"{text[: _MAX_PART - 1]}…"


def _brief_elements(value: Any, depth: int) -> str:
    """Return the text of a container, with its first elements."""
    if depth >= _MAX_DEPTH and value:
        return f"<{len(value)} elements>"
    elements: list[str] = []
    for element in value.items() if isinstance(value, Mapping) else value:
        if len(elements) == _MAX_ELEMENTS and len(value) > _MAX_ELEMENTS:
            elements.append("…")
            break
        if isinstance(value, Mapping):
            elements.append(f"{_brief(element[0])}: {_brief(element[1], depth + 1)}")
        else:
            elements.append(_brief(element, depth + 1))
    text = ", ".join(elements)
    match value:
        case Mapping():
            return f"{{{text}}}"
        case list():
            return f"[{text}]"
        case tuple():
            return f"({text},)" if len(value) == 1 else f"({text})"
    return f"{{{text}}}" if value else repr(value)


def _cell(value: Any) -> str:
    """Return the text of an attribute in a table: of numbers, where they lie."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and len(value) > _MAX_ELEMENTS and value.dtype.kind in "iuf":
        with np.errstate(all="ignore"):  # of numbers that are not finite
            low, middle, high = np.quantile(value, (0, 0.5, 1))
        return f"{len(value)} numbers: min {low:g}, median {middle:g}, max {high:g}"
    if isinstance(value, np.ndarray) and 0 < value.size <= _MAX_ELEMENTS:
        return str(value.tolist())
    return _brief(value)
