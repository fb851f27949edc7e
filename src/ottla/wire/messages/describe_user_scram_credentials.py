"""DescribeUserScramCredentials, key 50: mechanisms and iterations of users' SCRAM credentials (KIP-554).

Mechanisms: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
"""

from ottla.wire.declare import Int8, Int16, Int32, Struct, message


class UserName(Struct):
    """A user."""

    name: str = ""


@message(key=50, since=0, until=0, flexible_since=0)
class DescribeUserScramCredentialsRequest(Struct):
    """Null or empty: all users with credentials."""

    users: list[UserName] | None = []


class CredentialInfo(Struct):
    """One credential, without its secrets."""

    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribeUserScramCredentialsResult(Struct):
    """The credentials of one user."""

    user: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = []


@message(key=50, since=0, until=0, flexible_since=0)
class DescribeUserScramCredentialsResponse(Struct):
    """One result per user."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = []
