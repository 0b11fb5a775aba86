"""Datasets in the operator's folder: which paths requests may name, and processes that write and read them."""

from rollserve_server.datasets.folder import DataFolder
from rollserve_server.datasets.processes import DatasetReader, DatasetRecorder, DrawnBatch, Written, max_read_bytes

__all__ = ["DataFolder", "DatasetReader", "DatasetRecorder", "DrawnBatch", "Written", "max_read_bytes"]
