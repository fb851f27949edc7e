"""Exactly-once processing: consume, call a function, produce, and commit the offsets, in one transaction."""
