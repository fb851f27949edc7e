"""`ottla cluster`: local clusters, status, restarts, elections and reassignments."""
