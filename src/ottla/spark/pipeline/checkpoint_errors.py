"""Errors of checkpoints in topics and at URLs."""


class CheckpointUnavailable(RuntimeError):
    """The checkpoint cannot be read or written, or its topic has wrong settings."""


class CheckpointTakenOver(CheckpointUnavailable):
    """Another process has taken the checkpoint over."""


class CheckpointUnreachable(CheckpointUnavailable):
    """The file system of the checkpoint does not answer. The same request may succeed later."""
