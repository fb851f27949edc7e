"""All client settings with Kafka's names; in Python the same name in snake case, as a keyword argument.

Unknown settings are refused by name. Values may be Python's (`acks=1`, `linger_ms=5`) or Kafka's text (`acks="all"`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ottla.base.jaas import MECHANISMS, MODULES, SCRAM_256, SCRAM_512, JaasError, LoginModule, login_module
from ottla.base.listeners import SecurityProtocol
from ottla.base.options import ConfigError, ConfigType, Long, OptionSpec, Secret, option, suggestion
from ottla.base.ssl_options import SslOptions
from ottla.base.units import INT32_MAX, INT64_MAX, MINUTE_MS, SECOND_MS, KiB, MiB
from ottla.net.sasl.login import Login
from ottla.net.sasl.logins import LoginRefused, OAuthSource, TokenProvider, login_of

DEFAULT_PORT = 9092
#: The setting that is a function.
PROVIDER = "sasl_oauth_token_provider"
#: Factor by which batches may grow if the brokers fall behind: large batches are cheap.
BACKLOG_FACTOR = 8


class ClientOptions(SslOptions):
    """Settings of all clients."""

    security_protocol: str = option(
        "PLAINTEXT", choices=tuple(SecurityProtocol),
        doc="Whether connections to brokers are encrypted (SSL) and authenticate with SASL, as the listener of the brokers is.",
    )  # fmt: skip

    bootstrap_servers: tuple[str, ...] = option(
        ("127.0.0.1:9092",),
        doc=(
            "Addresses to connect to first, HOST:PORT each, separated by commas; these brokers name the others. The default "
            "port is 9092."
        ),
    )  # fmt: skip
    client_id: str = option("ottla", doc="Name of the client in the broker's logs, metrics and quotas.")
    request_timeout_ms: int = option(
        30 * SECOND_MS, at_least=1, doc="Timeout of a request; the connection is then closed, and the request is retried if that is safe."
    )
    socket_connection_setup_timeout_ms: Long = option(
        10 * SECOND_MS, at_least=1, doc="Timeout of a connection attempt, including name resolution and version exchange."
    )
    reconnect_backoff_ms: Long = option(50, at_least=0, doc="Wait before a failed connection to a broker is retried; doubles each time.")
    reconnect_backoff_max_ms: Long = option(SECOND_MS, at_least=0, doc="Maximum wait between two connection attempts.")
    retry_backoff_ms: Long = option(100, at_least=0, doc="Wait before a failed request is retried; doubles each time.")
    retry_backoff_max_ms: Long = option(SECOND_MS, at_least=0, doc="Maximum wait between two attempts of a request.")
    metadata_max_age_ms: Long = option(5 * MINUTE_MS, at_least=1, doc="Metadata is refreshed after this time even without a known change.")
    receive_message_max_bytes: int = option(
        100 * MiB, at_least=1 * KiB, at_most=INT32_MAX,
        doc="Largest response; a larger one closes the connection before memory is allocated for it.",
    )  # fmt: skip
    send_buffer_bytes: int = option(
        -1, at_least=-1, doc="Size of the socket's send buffer (SO_SNDBUF); -1: the operating system's default."
    )
    receive_buffer_bytes: int = option(
        -1, at_least=-1, doc="Size of the socket's receive buffer (SO_RCVBUF); -1: the operating system's default."
    )

    sasl_mechanism: str = option(
        "", choices=("", *MECHANISMS), doc="SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI."
    )
    sasl_username: str = option("", doc="User name for PLAIN and SCRAM; the id of a delegation token.")
    sasl_password: Secret = option("", doc="Password for PLAIN and SCRAM; the HMAC of a delegation token.")
    sasl_delegation_token: bool = option(False, doc="Whether sasl.username and sasl.password are those of a delegation token, with SCRAM.")
    sasl_jaas_config: Secret = option(
        "", check=login_module, doc="A login module with the credentials, as in Java clients, instead of sasl.username and sasl.password."
    )
    sasl_oauthbearer_token_endpoint_url: str = option(
        "", form=(r"|(file|https?)://\S+", "a URL that begins with file://, https:// or http://"),
        doc="Where OAUTHBEARER gets tokens: https://HOST/PATH for client credentials, or file:///PATH of a token.",
    )  # fmt: skip
    sasl_oauthbearer_client_credentials_client_id: str = option("", doc="Client id at the identity provider's token endpoint.")
    sasl_oauthbearer_client_credentials_client_secret: Secret = option("", doc="Client secret at the identity provider's token endpoint.")
    sasl_oauthbearer_scope: str = option("", doc="Scope that is requested from the identity provider.")
    sasl_kerberos_service_name: str = option("", doc="Service name of the brokers in Kerberos; kafka if not set.")

    #: Returns a token for OAUTHBEARER, or an awaitable of it; called for each authentication. Not a setting of Kafka, so not in text form.
    sasl_oauth_token_provider: TokenProvider | None = None


class ProducerOptions(ClientOptions):
    """Settings of a producer."""

    acks: str = option(
        "all", choices=("all", "-1", "0", "1"),
        doc="Which replicas must have a batch before it is acknowledged: all in-sync replicas (all, -1), the leader (1), none (0).",
    )  # fmt: skip
    enable_idempotence: bool = option(
        True,
        doc=(
            "Sequence numbers prevent that a retry is written twice or out of order. Requires acks=all, retries, and at most "
            "five requests in flight; if one of these is set otherwise, idempotence is disabled unless it is enabled "
            "explicitly."
        ),
    )  # fmt: skip
    compression_type: str = option("none", choices=("none", "gzip", "snappy", "lz4", "zstd"), doc="Codec of batches.")
    compression_gzip_level: int = option(-1, at_least=-1, at_most=9, doc="1 is fastest, 9 smallest; -1: the default of zlib.")
    compression_lz4_level: int = option(9, at_least=1, at_most=17, doc="1 is fastest, 17 smallest.")
    compression_zstd_level: int = option(3, at_least=-131072, at_most=22, doc="Below 0 fastest, 22 smallest.")
    batch_size: int = option(
        64 * KiB, at_least=0, at_most=INT32_MAX,
        doc="Size at which a batch is sent, in bytes before compression. A larger record is sent alone.",
    )  # fmt: skip
    batch_size_backlog: int = option(
        -1, at_least=-1, at_most=INT32_MAX,
        doc=(
            "Maximum size of a batch while earlier batches of its partition wait. -1: eight times batch.size if that has its "
            "default, else batch.size."
        ),
    )  # fmt: skip
    linger_ms: Long = option(5, at_least=0, doc="How long a batch that is not full waits for more records.")
    buffer_memory: Long = option(32 * MiB, at_least=1 * KiB, doc="Bytes of unacknowledged records; above this send() waits.")
    max_block_ms: Long = option(MINUTE_MS, at_least=0, doc="How long send() may wait for memory or metadata before it fails.")
    max_request_size: int = option(1 * MiB, at_least=0, doc="Largest produce request, and largest record before compression, in bytes.")
    max_in_flight_requests_per_connection: int = option(5, at_least=1, doc="Maximum number of unanswered produce requests to one broker.")
    retries: int = option(INT32_MAX, at_least=0, doc="Number of retries after a retriable error; delivery.timeout.ms may end them earlier.")
    delivery_timeout_ms: int = option(
        2 * MINUTE_MS, at_least=1,
        doc="Time from send() after which a record without acknowledgement fails. At least linger.ms + request.timeout.ms.",
    )  # fmt: skip
    partitioner_ignore_keys: bool = option(False, doc="The default partitioner treats records with a key like those without.")
    partitioner_adaptive_partitioning_enable: bool = option(
        True, doc="Send fewer of the records without a key to partitions with more waiting batches (KIP-794)."
    )
    partitioner_availability_timeout_ms: Long = option(
        0, at_least=0, doc="Send no records without a key to a broker that accepted no request for this time; 0: no such check."
    )
    metadata_max_idle_ms: Long = option(
        5 * MINUTE_MS, at_least=5 * SECOND_MS, doc="The metadata of a topic without sent records for this time is not refreshed any more."
    )

    transactional_id: str = option(
        "",
        doc=(
            "Makes the producer transactional, under this id, which stays the same when the process starts again. A new producer "
            "of the id aborts the open transaction of the one before, and fences it."
        ),
    )  # fmt: skip
    transaction_timeout_ms: int = option(
        MINUTE_MS, at_least=1,
        doc="Time after which the coordinator aborts an open transaction. At most the brokers' transaction.max.timeout.ms.",
    )  # fmt: skip
    transaction_two_phase_commit_enable: bool = option(
        False,
        doc=(
            "Transactions have no timeout, and can be prepared: another system decides them, also after a restart (KIP-939). The "
            "brokers must allow it with the setting of the same name."
        ),
    )  # fmt: skip


class ConsumerOptions(ClientOptions):
    """Settings of a consumer."""

    group_id: str = option("", doc="The consumer group. Its members share the partitions of their topics; it stores offsets.")
    group_instance_id: str = option(
        "",
        doc=(
            "Makes this member static: after a restart within the session timeout it has the same partitions without a "
            "rebalance. It does not leave the group when it closes. Must be unique in the group."
        ),
    )  # fmt: skip
    group_protocol: str = option(
        "classic", choices=("classic", "consumer"),
        doc="classic: a member assigns the partitions; consumer: the coordinator assigns them, and members change one by one (KIP-848).",
    )  # fmt: skip
    group_remote_assignor: str = option(
        "", doc="The coordinator's assignor with group.protocol=consumer: uniform or range. Empty: its default."
    )
    partition_assignment_strategy: tuple[str, ...] = option(
        ("range", "cooperative-sticky"),
        doc=(
            "Assignors in order of preference: range, roundrobin, sticky, cooperative-sticky, or custom classes. Members keep "
            "reading during a rebalance if all of them are cooperative."
        ),
    )  # fmt: skip
    session_timeout_ms: int = option(
        45 * SECOND_MS, at_least=1, doc="A member without a heartbeat for this time is removed from the group."
    )
    heartbeat_interval_ms: int = option(
        3 * SECOND_MS, at_least=1,
        doc="Interval of heartbeats, and so how soon a member learns of a rebalance. Less than the session timeout.",
    )  # fmt: skip
    max_poll_interval_ms: int = option(
        5 * MINUTE_MS, at_least=1,
        doc=(
            "A member that does not poll for this time leaves the group until it polls again. Also the maximum time that a "
            "rebalance waits for members to revoke their partitions."
        ),
    )  # fmt: skip
    enable_auto_commit: bool = option(
        True, doc="Commit polled offsets: in poll() every auto.commit.interval.ms, before partitions are revoked, and on close."
    )
    auto_commit_interval_ms: int = option(5 * SECOND_MS, at_least=0, doc="Interval of automatic commits.")
    client_rack: str = option(
        "", doc="Rack of this client: brokers may direct it to a replica there, and assignors may prefer such partitions."
    )
    exclude_internal_topics: bool = option(
        True, doc="Whether a pattern that the client evaluates excludes internal topics. Brokers match all topics."
    )
    auto_offset_reset: str = option(
        "latest",
        doc=(
            "Where to start without a valid position: earliest, latest, none (an error), or by_duration:P1DT12H, a time "
            "before now (KIP-1106)."
        ),
    )  # fmt: skip
    isolation_level: str = option(
        "read_uncommitted", choices=("read_uncommitted", "read_committed"),
        doc="read_committed omits records of open and aborted transactions.",
    )  # fmt: skip
    fetch_min_bytes: int = option(1, at_least=0, doc="Bytes with which the broker answers a fetch without waiting.")
    fetch_max_wait_ms: int = option(500, at_least=0, doc="Maximum time that the broker waits for fetch.min.bytes.")
    fetch_max_bytes: int = option(50 * MiB, at_least=0, doc="Maximum bytes of a fetch response; a larger first batch is returned whole.")
    max_partition_fetch_bytes: int = option(
        1 * MiB, at_least=0, doc="Maximum bytes of one partition in a fetch response; a larger first batch is returned whole."
    )
    max_poll_records: int = option(500, at_least=1, doc="Maximum number of records that one poll() returns.")
    check_crcs: bool = option(True, doc="Compare each batch with its checksum.")
    default_api_timeout_ms: int = option(MINUTE_MS, at_least=0, doc="Default timeout of calls that send requests to brokers.")
    allow_auto_create_topics: bool = option(True, doc="Whether a requested topic may be created if the broker allows it.")


class AdminOptions(ClientOptions):
    """Settings of an admin client."""

    default_api_timeout_ms: int = option(MINUTE_MS, at_least=1, at_most=INT64_MAX, doc="Timeout of a call, with all its retries.")
    retries: int = option(INT32_MAX, at_least=0, doc="Number of retries after a retriable error.")


T = TypeVar("T", bound=ClientOptions)


def from_keywords(table: type[T], keywords: Mapping[str, Any]) -> T:
    """The keyword arguments over the defaults.

    Raises: ConfigError for an unknown name, or a value that is out of range or of the wrong type.
    """
    by_attribute = {spec.attribute: spec for spec in table.SPECS.values()}
    made = table()
    for name, value in keywords.items():
        if name == PROVIDER:
            if value is not None and not callable(value):
                raise ConfigError(name, f"expected a function that returns a token, not {type(value).__name__}")
            made.sasl_oauth_token_provider = value
            continue
        spec = by_attribute.get(name)
        if spec is None:
            raise ConfigError(name, "unknown setting" + suggestion(name, by_attribute))
        if value is None and spec.kind is ConfigType.STRING and spec.default == "":
            # Other clients' value for "not set".
            continue
        setattr(made, name, _sayable(spec, spec.parse(_text(spec, value))))
    if not made.bootstrap_servers:
        raise ConfigError("bootstrap_servers", "is empty; name a broker to begin with, HOST:PORT")
    for address in made.bootstrap_servers:
        parse_address(address)
    login_of_options(made)
    _check_security(made)
    if isinstance(made, ProducerOptions):
        _check_producer(made, keywords)
    if isinstance(made, ConsumerOptions):
        _check_consumer(made, keywords)
    return made


def login_of_options(options: ClientOptions) -> Login | None:
    """The credentials for listeners with SASL; None without SASL. Raises: ConfigError."""
    given = [
        spec.attribute for spec in ClientOptions.SPECS.values() if spec.attribute.startswith("sasl_") and getattr(options, spec.attribute)
    ]
    if not SecurityProtocol(options.security_protocol).sasl:
        if given:
            raise ConfigError(given[0], f"has no effect with security_protocol {options.security_protocol}; set SASL_SSL or SASL_PLAINTEXT")
        return None
    if not options.sasl_mechanism:
        raise ConfigError("sasl_mechanism", f"is not set; {options.security_protocol} needs one of {', '.join(MECHANISMS)}")
    if options.sasl_delegation_token and options.sasl_mechanism not in (SCRAM_256, SCRAM_512):
        raise ConfigError("sasl_delegation_token", f"delegation tokens need SCRAM-SHA-256 or SCRAM-SHA-512, not {options.sasl_mechanism}")
    module = LoginModule(MODULES[options.sasl_mechanism], _user(options))
    if options.sasl_jaas_config:
        if module.options:
            raise ConfigError("sasl_jaas_config", "set either this, or sasl_username and sasl_password")
        try:
            module = login_module(options.sasl_jaas_config, options.sasl_mechanism)
        except JaasError as error:
            raise ConfigError("sasl_jaas_config", str(error)) from None
    source = OAuthSource(
        provider=options.sasl_oauth_token_provider,
        url=options.sasl_oauthbearer_token_endpoint_url,
        client_id=options.sasl_oauthbearer_client_credentials_client_id,
        client_secret=options.sasl_oauthbearer_client_credentials_client_secret,
        scope=options.sasl_oauthbearer_scope,
    )
    try:
        return login_of(options.sasl_mechanism, module, source, service=options.sasl_kerberos_service_name)
    except LoginRefused as error:
        raise ConfigError("sasl_mechanism", str(error)) from None


def _user(options: ClientOptions) -> dict[str, str]:
    found = {"username": options.sasl_username, "password": options.sasl_password}
    if options.sasl_delegation_token:
        found["tokenauth"] = "true"
    return {name: value for name, value in found.items() if value}


def _sayable(spec: OptionSpec, value: Any) -> Any:
    """Validates strings that are sent to brokers: client id, group id."""
    if isinstance(value, str) and (size := len(value.encode(errors="replace"))) > STRING_BYTES_MAX:
        raise ConfigError(spec.attribute, f"has {size} bytes; the protocol can say at most {STRING_BYTES_MAX} bytes")
    return value


def _text(spec: OptionSpec, value: Any) -> str:
    if isinstance(value, bool) or spec.kind is ConfigType.BOOLEAN:
        if not isinstance(value, bool | str) or (isinstance(value, bool) and spec.kind is not ConfigType.BOOLEAN):
            raise ConfigError(spec.attribute, f"expected {_EXPECTED[spec.kind]}, not {value!r}")
        return str(value).lower()
    if spec.kind is ConfigType.LIST and isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return ",".join(str(part) for part in value)
    if isinstance(value, int | float | str):
        return str(value)
    shown = type(value).__name__ if spec.kind is ConfigType.PASSWORD else repr(value)
    raise ConfigError(spec.attribute, f"expected {_EXPECTED[spec.kind]}, not {shown}")


#: Maximum length of a string in the protocol.
STRING_BYTES_MAX = 32_767
_EXPECTED = {
    ConfigType.BOOLEAN: "True or False",
    ConfigType.STRING: "a string",
    ConfigType.INT: "a whole number",
    ConfigType.LONG: "a whole number",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a list or a string with commas",
    ConfigType.PASSWORD: "a string",
}


def _check_security(made: ClientOptions) -> None:
    """Settings of TLS without effect are refused: their user expects encryption."""
    if SecurityProtocol(made.security_protocol).tls:
        return
    for name in ("ssl_truststore_location", "ssl_truststore_certificates", "ssl_keystore_location", "ssl_keystore_key"):
        if getattr(made, name):
            raise ConfigError(name, f"has no effect with security_protocol={made.security_protocol}; set SSL or SASL_SSL, or leave it out")


def _check_producer(made: ProducerOptions, given: Mapping[str, Any]) -> None:
    """Disables idempotence if other settings conflict; if it was requested, raises ConfigError."""
    reasons = []
    if made.acks not in ("all", "-1"):
        reasons.append(f"acks={made.acks}")
    if made.retries == 0:
        reasons.append("retries=0")
    if made.max_in_flight_requests_per_connection > 5:
        reasons.append(f"max_in_flight_requests_per_connection={made.max_in_flight_requests_per_connection}")
    if made.enable_idempotence and reasons:
        if "enable_idempotence" in given:
            raise ConfigError("enable_idempotence", f"needs acks=all, retries above 0 and at most 5 in flight, but {reasons[0]} was set")
        if made.transactional_id:
            raise ConfigError("transactional_id", f"needs acks=all, retries above 0 and at most 5 in flight, but {reasons[0]} was set")
        made.enable_idempotence = False
    _check_transactions(made, given)
    if made.batch_size_backlog < 0:
        made.batch_size_backlog = made.batch_size * (1 if "batch_size" in given else BACKLOG_FACTOR)
    least = made.linger_ms + made.request_timeout_ms
    if made.delivery_timeout_ms < least:
        if "delivery_timeout_ms" in given:
            raise ConfigError(
                "delivery_timeout_ms",
                f"{made.delivery_timeout_ms} is less than linger_ms + request_timeout_ms = {least}; raise it or lower those",
            )
        made.delivery_timeout_ms = least


def _check_transactions(made: ProducerOptions, given: Mapping[str, Any]) -> None:
    if made.transactional_id and not made.enable_idempotence:
        raise ConfigError("transactional_id", "needs enable_idempotence, which was set to False; leave it out")
    if made.transaction_two_phase_commit_enable:
        if not made.transactional_id:
            raise ConfigError("transaction_two_phase_commit_enable", "needs a transactional_id")
        if "transaction_timeout_ms" in given:
            raise ConfigError(
                "transaction_timeout_ms", "has no effect with transaction_two_phase_commit_enable: these transactions have no timeout"
            )


def _check_consumer(made: ConsumerOptions, given: Mapping[str, Any]) -> None:
    """Validates combinations of settings."""
    reset_duration_ms(made.auto_offset_reset)
    if made.heartbeat_interval_ms >= made.session_timeout_ms:
        session_ms = made.session_timeout_ms
        problem = f"{made.heartbeat_interval_ms} is not below session_timeout_ms, {session_ms}; take a third of it"
        raise ConfigError("heartbeat_interval_ms", problem)
    if made.group_protocol == "consumer":
        for name in ("session_timeout_ms", "heartbeat_interval_ms", "partition_assignment_strategy"):
            if name in given:
                raise ConfigError(name, 'the coordinator decides this with group_protocol="consumer"; leave it out')
    elif made.group_remote_assignor:
        raise ConfigError("group_remote_assignor", 'needs group_protocol="consumer"; with classic, use partition_assignment_strategy')
    for name in ("group_instance_id", "enable_auto_commit"):
        if not made.group_id and given.get(name):
            raise ConfigError(name, "needs a group_id")


def reset_duration_ms(policy: str) -> int | None:
    """Duration of `auto.offset.reset`; None for another policy. Raises: ConfigError."""
    if policy in ("earliest", "latest", "none"):
        return None
    found = re.fullmatch(r"by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", policy)
    if found is None or not any(found.groups()):
        raise ConfigError("auto_offset_reset", f"{policy!r} is not earliest, latest, none, or a duration such as by_duration:PT1H")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of "host:port", "host", "[v6]:port" or "v6".

    Raises: ConfigError.
    """
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or "/" in host or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise ConfigError("bootstrap_servers", f"{text!r} is not HOST:PORT")
    return host, int(port or DEFAULT_PORT)


def address_problem(servers: str) -> str | None:
    """The problem of the first broker address in `servers` without a port or in a wrong form; None if all are HOST:PORT."""
    for text in filter(None, (part.strip() for part in servers.split(","))):
        try:
            host, port = parse_address(text)
        except ConfigError as error:
            return f"{error.problem}; expected HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}"
        if text.startswith("[") or text.count(":") < 2:
            given = text.rpartition("]")[2] if text.startswith("[") else text
            if given.rpartition(":")[1] and given.rpartition(":")[2]:
                continue
        return f"{text!r} has no port; write {address_text(host, port)} if the broker listens on Kafka's usual port"
    return None


def address_text(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
