"""The origin of a request: what a broker knows about the client at the other end of its connection."""

import msgspec

#: The principal of a client that did not authenticate. Source: Kafka's KafkaPrincipal.
ANONYMOUS = "User:ANONYMOUS"


class Origin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One per connection, replaced when the client authenticates."""

    #: Address of the client without port, for limits, access rules and DescribeCluster.
    host: str = ""
    #: Address and port to which the client connected; the host is advertised if the broker listens everywhere and advertises nothing.
    local: tuple[str, int] = ("", 0)
    #: Name of the listener, such as PLAINTEXT or INTERNAL.
    listener: str = "PLAINTEXT"
    #: Type and name, such as ``User:alice``.
    principal: str = ANONYMOUS
    #: Whether the client authenticated with a delegation token.
    token: bool = False


#: The origin of requests that do not come over a connection.
NOWHERE = Origin()
#: The origin of requests between brokers of one process, which may do everything. A client cannot have it: authentication yields principals
#: of type User, and a connection has an address at both ends.
SAME_PROCESS = Origin(principal="Broker:same-process")
