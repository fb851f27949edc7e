"""`ottla doctor`: checks of a cluster and of a data directory."""
