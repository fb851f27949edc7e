"""Fetching: fetch sessions, buffers, offset look-ups, ranges of offsets."""
