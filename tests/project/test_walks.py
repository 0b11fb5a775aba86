"""The page of walks shows the modules that calls pass."""

from __future__ import annotations

import re

import walks


def tables(page: str) -> list[list[list[str]]]:
    """Return the names in each table of a page, whatever their order within a row and the rows' order."""
    found = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    return [sorted(sorted(re.findall(r"`([^`]+)`", row)) for row in table.splitlines()) for table in found]


def test_page_of_walks_is_up_to_date() -> None:
    page = walks.page(walks.walks())
    assert re.findall("^## .*", page, re.MULTILINE) == re.findall("^## .*", walks.PAGE.read_text(), re.MULTILINE)
    assert tables(page) == tables(walks.PAGE.read_text()), "make walks"
