"""A server, its workers and its clients, all of which fail now and then, while everything that comes is compared."""
