"""`make fuzz`: so many inputs, and what came of them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from faults.chaos.service import python_path
from faults.fuzzing.campaign import SERVER_OPTIONS, fuzz, save
from rich.console import Console
from rich.table import Table

from rollserve_server.local import local_server


def main() -> int:
    parser = argparse.ArgumentParser("fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="how many inputs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--seed", type=int, default=0, help="of all of them")
    parser.add_argument("--backend", choices=["ray", "in-process"], default="in-process")
    parser.add_argument(
        "--folder", type=Path, default=Path("fuzz-run"), help="for inputs with wrong answers, and the log"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollserve-fuzz-") as folder:
        log = Path(folder, "log")
        options = (*SERVER_OPTIONS, "--backend", given.backend)
        began = time.monotonic()
        with local_server(*options, log=log, environment=python_path()) as server:
            numbers = range(given.first, given.first + given.count)
            verdict = fuzz(server.address, server.process.pid, numbers, given.seed)
            if server.process.poll() is not None:
                verdict.problems.append(f"the server ended with status {server.process.returncode}")
        text = log.read_text(errors="replace")
    checks = len(verdict.growth_bytes)
    quarters = sorted({max(checks * part // 4 - 1, 0) for part in range(1, 5)} if checks else ())
    console = Console()
    table = Table("answer", "times", title=f"{verdict.num_inputs} inputs, seed {given.seed}", title_justify="left")
    for outcome, times in verdict.outcomes.most_common():
        table.add_row(outcome, str(times))
    console.print(table)
    console.print(
        f"{time.monotonic() - began:.0f} s; longest good call {verdict.longest_good_seconds:.2f} s; "
        f"server grew by {', '.join(f'{verdict.growth_bytes[at] / 1e6:.0f}' for at in quarters)} MB, quarter by quarter"
    )
    if "Traceback" in text:
        verdict.problems.append(f"a traceback is in the server's log:\n{text[text.index('Traceback') :][:3000]}")
    for problem in (*verdict.problems, *(f"input {number}: {text}" for number, text in verdict.wrong.items())):
        console.print(f"wrong: {problem}", markup=False, highlight=False)
    save(given.folder, given.seed, verdict.wrong)
    if verdict.problems or verdict.wrong:
        Path(given.folder, "server.log").write_text(text)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
