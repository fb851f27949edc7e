"""Results of admin requests about users and delegation tokens."""

from __future__ import annotations

import msgspec

from ottla.base.scram import ScramMechanism


class ScramCredentialInfo(msgspec.Struct, frozen=True):
    """A user's credential of one mechanism, without its secrets."""

    mechanism: ScramMechanism
    iterations: int
