"""The messages and the service of the wire contract, generated from `protos/rollserve/v1`."""
