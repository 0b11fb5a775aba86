"""The server process: built from settings, serving until a signal, then closed in order."""
