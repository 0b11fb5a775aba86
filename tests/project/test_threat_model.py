"""The threat model: every test that it names exists, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"
TEXT = PAGE.read_text()
LINKS = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", TEXT)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_named_tests_exist() -> None:
    named = [(text, target) for text, target in LINKS if target.startswith("../tests/")]
    assert len(named) > 40
    for text, target in named:
        name = re.fullmatch(r"`(test_\w+)`", text)
        assert name, text
        source = (PAGE.parent / target).resolve().read_text()
        assert re.search(rf"^(async )?def {name[1]}\(", source, re.MULTILINE), f"{target} has no {name[1]}"


def test_each_defence_names_a_test() -> None:
    rows = [row for row in TEXT.splitlines() if row.startswith("| ") and row.count(" | ") >= 2]
    defences = [row for row in rows if not row.endswith(" test |")]
    assert len(defences) > 30
    assert all("](../tests/" in row for row in defences)


def test_links_lead_somewhere() -> None:
    for _, target in LINKS:
        path, _, anchor = target.partition("#")
        page = (PAGE.parent / path).resolve() if path else PAGE
        assert page.exists(), target
        assert not anchor or anchor in anchors(page), target
