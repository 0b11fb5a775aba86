"""Kinds of the messages in HDF5's object headers.

Source: HDF5 File Format Specification 3.0, section IV.A.2, "Disk Format: Level 2A2".
"""

from __future__ import annotations

__all__ = [
    "ATTRIBUTE",
    "ATTRIBUTE_INFO",
    "CONTINUATION",
    "DATASPACE",
    "DATATYPE",
    "EXTERNAL",
    "FILL_VALUE",
    "FILTERS",
    "GROUP_INFO",
    "LAYOUT",
    "LINK",
    "LINK_INFO",
    "NIL",
    "SYMBOL_TABLE",
    "TIME",
    "UNDEFINED",
]

NIL, DATASPACE, LINK_INFO, DATATYPE, FILL_VALUE, LINK = 0x00, 0x01, 0x02, 0x03, 0x05, 0x06
EXTERNAL, LAYOUT, GROUP_INFO, FILTERS, ATTRIBUTE = 0x07, 0x08, 0x0A, 0x0B, 0x0C
CONTINUATION, SYMBOL_TABLE, TIME, ATTRIBUTE_INFO = 0x10, 0x11, 0x12, 0x15
UNDEFINED = (1 << 64) - 1
"""Address of nothing."""
