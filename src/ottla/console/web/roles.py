"""Roles of users, in order: each may do all that the ones before it may."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """VIEWER reads. EDITOR changes topics, groups and settings of topics, and produces. ADMIN also changes access and the cluster."""

    VIEWER = 1
    EDITOR = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        """The name in the login file."""
        return self.name.lower()
