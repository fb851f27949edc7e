"""`ottla completion`: scripts for shell completion."""
