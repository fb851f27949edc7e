"""AlterUserScramCredentials, key 51: set and delete users' SCRAM credentials (KIP-554). Mechanisms as in DescribeUserScramCredentials."""

from ottla.wire.declare import Int8, Int16, Int32, Struct, message


class ScramCredentialDeletion(Struct):
    """A credential to delete."""

    name: str = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Struct):
    """A credential to set: the client salts the password, so that the broker does not get it."""

    name: str = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: bytes = b""
    salted_password: bytes = b""


@message(key=51, since=0, until=0, flexible_since=0)
class AlterUserScramCredentialsRequest(Struct):
    """A user appears once."""

    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []


class AlterUserScramCredentialsResult(Struct):
    """The outcome for one user."""

    user: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""


@message(key=51, since=0, until=0, flexible_since=0)
class AlterUserScramCredentialsResponse(Struct):
    """One result per user."""

    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = []
