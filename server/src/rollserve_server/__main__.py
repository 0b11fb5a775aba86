"""The command `python -m rollserve_server`, which is the same as `rollserve-server`."""

from rollserve_server.cli import main

main(prog_name="rollserve-server")
