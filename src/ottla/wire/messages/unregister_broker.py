"""UnregisterBroker, key 64: forget a broker that is gone, in a cluster that keeps its own list of brokers (KIP-500)."""

from ottla.wire.declare import Int16, Int32, Struct, message


@message(key=64, since=0, until=0, flexible_since=0)
class UnregisterBrokerRequest(Struct):
    """The broker to forget."""

    broker_id: Int32 = 0


@message(key=64, since=0, until=0, flexible_since=0)
class UnregisterBrokerResponse(Struct):
    """Whether it was forgotten."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
