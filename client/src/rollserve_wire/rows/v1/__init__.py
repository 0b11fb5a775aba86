"""The generated classes of rollserve.rows.v1."""
