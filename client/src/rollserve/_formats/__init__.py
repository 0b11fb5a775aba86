"""Files of episodes: one module for each format, which reads and writes it with the format's own library.

Readers are a `Source` each and return the fields of batches; writers take batches. Libraries are imported when they are
first needed, and belong to the extra `data`.
"""
