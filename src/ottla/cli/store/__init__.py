"""`ottla store`: check and restore the embedded store."""
