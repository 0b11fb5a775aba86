"""Servers for tests of trainers: scripted environments, and faults on demand.

pytest finds the fixture `rollserve_server` by itself. `python -m rollserve_server.testing` is for other languages. The
module `serve` makes the faults; ordinary servers do not import it.
"""

from rollserve_server.testing.faulty_server import FaultyServer, faulty_server

__all__ = ["FaultyServer", "faulty_server"]
