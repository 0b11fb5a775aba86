"""Translation between protobuf messages and the values of the pool: `x_from_proto` and `x_to_proto`."""
