"""The worker: the methods that the pool calls, and the versions and the work that it keeps."""
