"""Pipelines: their status, read by a process of its own, and dead letters that go back to their topics."""
