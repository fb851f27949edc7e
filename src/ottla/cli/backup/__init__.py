"""`ottla backup` and `ottla restore`: metadata and configuration of a cluster in one file."""
