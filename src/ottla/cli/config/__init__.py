"""`ottla config`: describe and alter settings."""
