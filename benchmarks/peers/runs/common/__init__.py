"""Parts that all peers' programs share."""
