"""The conformance kit: numbered cases that a client in any language runs against a scripted server.

`docs/conformance.md` describes the command, the adapter of a client, and how results are judged.
"""
