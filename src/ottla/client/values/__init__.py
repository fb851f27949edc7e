"""Formats of keys and values, paths into JSON values, and filters of records."""
