"""Print the coverage of each package and of its rooms, and the modules that are tested least.

coverage_table.py REPORT    # what `coverage json` has written
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

_BAR = 90


def main(report: Path) -> None:
    """Print the table, each room below its package, then all modules below the bar."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    below = []
    for file, data in json.loads(report.read_text())["files"].items():
        summary = data["summary"]
        module = re.sub(r"^.*src/|\.py$", "", file).split("/")
        for room in {module[0], *(["/".join(module[:2])] if len(module) > 2 else [])}:
            counts[room][0] += summary["covered_lines"]
            counts[room][1] += summary["num_statements"]
        if summary["percent_covered"] < _BAR:
            below.append((summary["percent_covered"], "/".join(module), summary["missing_lines"]))
    print(f"{'package':40} {'lines':>6} {'missing':>8} {'covered':>8}")
    for room, (covered, lines) in sorted(counts.items()):
        name = room if "/" not in room else f"  {room.split('/')[1]}"
        print(f"{name:40} {lines:6} {lines - covered:8} {100 * covered / max(lines, 1):6.1f} %")
    print(f"\nmodules below {_BAR} %:")
    for percent, name, missing in sorted(below):
        print(f"{name:68} {missing:4} missing {percent:6.1f} %")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
