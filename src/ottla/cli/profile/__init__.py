"""`ottla profile`: saved connection settings."""
