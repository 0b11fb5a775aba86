"""Send malformed requests to a server, print its answers, and exit with 1 if any breaks the contract."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from faults.chaos.service import python_path
from faults.fuzzing.campaign import SERVER_OPTIONS, Guard, fuzz, save
from rich.console import Console
from rich.table import Table

from rollserve_server.local import local_server


def main() -> int:
    parser = argparse.ArgumentParser("fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="number of requests")
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument("--seed", type=int, default=0, help="seed of all requests")
    parser.add_argument("--backend", choices=["ray", "in-process"], default="in-process", help="backend of the server")
    parser.add_argument(
        "--folder", type=Path, default=Path("fuzz-run"), help="folder for requests with wrong answers, and the log"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollserve-fuzz-") as folder:
        log, guard = Path(folder, "log"), Guard(Path(folder))
        options = (*SERVER_OPTIONS, *guard.options, "--backend", given.backend)
        began = time.monotonic()
        with local_server(*options, log=log, environment=python_path()) as server:
            numbers = range(given.first, given.first + given.count)
            verdict = fuzz(server.address, server.process.pid, numbers, given.seed, guard)
            if server.process.poll() is not None:
                verdict.problems.append(f"the server ended with status {server.process.returncode}")
        text = log.read_text(errors="replace")
        if guard.credentials.valid in text:
            verdict.problems.append("the log of the server has a token")
    checks = len(verdict.growth_bytes)
    quarters = sorted({max(checks * part // 4 - 1, 0) for part in range(1, 5)} if checks else ())
    console = Console()
    table = Table("answer", "times", title=f"{verdict.num_inputs} requests, seed {given.seed}", title_justify="left")
    for outcome, times in verdict.outcomes.most_common():
        table.add_row(outcome, str(times))
    console.print(table)
    console.print(
        f"{time.monotonic() - began:.0f} s; slowest valid call {verdict.longest_valid_seconds:.2f} s; "
        f"growth of the server by quarter: {', '.join(f'{verdict.growth_bytes[at] / 1e6:.0f}' for at in quarters)} MB"
    )
    if "Traceback" in text:
        verdict.problems.append(f"the log of the server has a traceback:\n{text[text.index('Traceback') :][:3000]}")
    for problem in (*verdict.problems, *(f"request {number}: {text}" for number, text in verdict.wrong.items())):
        console.print(f"wrong: {problem}", markup=False, highlight=False)
    save(given.folder, given.seed, verdict.wrong)
    if verdict.problems or verdict.wrong:
        Path(given.folder, "server.log").write_text(text)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
