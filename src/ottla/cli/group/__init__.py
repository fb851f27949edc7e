"""`ottla group`: describe, reset and delete consumer groups."""
