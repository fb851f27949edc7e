"""Settings of a broker, with Kafka's names and defaults. Names without a counterpart in Kafka begin with ``ottla.``.

The default of a topic setting for the whole broker is the first synonym that ``TopicOptions`` declares; ``topic_defaults`` lists them. A
topic setting without a synonym has no broker default.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from ottla.base.jaas import MECHANISMS, login_module
from ottla.base.listeners import SecurityProtocol
from ottla.base.options import ConfigError, Long, Options, OptionSpec, Secret, option, suggestion
from ottla.base.ssl_options import STORE_TYPES, ListenerSslOptions
from ottla.base.units import DAY_MS, HOUR_MS, INT64_MAX, MINUTE_MS, SECOND_MS, KiB, MiB
from ottla.broker.metadata.image import Image
from ottla.broker.metadata.sasl_options import SaslOptions
from ottla.broker.metadata.schema_registry_options import SchemaRegistryOptions
from ottla.broker.replica.replica_selector import LEADER_SELECTOR, SELECTORS
from ottla.broker.security.authorizer import CLASSES
from ottla.log.options import TopicOptions
from ottla.store.layout import DEFAULT_ENTITY

#: Can change for the whole cluster at run time.
_cluster_wide = partial(option, scope="cluster-wide")


class ServerOptions(ListenerSslOptions):
    """Settings of the process: identity, directories, listeners, limits."""

    broker_id: int = option(1, at_least=0, doc="Number of this broker, unique in its cluster.")
    listeners: tuple[str, ...] = option(
        ("PLAINTEXT://127.0.0.1:9092",),
        doc="Names and addresses to listen on, as NAME://HOST:PORT,NAME://HOST:PORT. Without a host: every address. Port 0: a free one.",
    )
    advertised_listeners: tuple[str, ...] = option(
        (),
        doc=(
            "Addresses that clients and brokers get, by listener, as NAME://HOST:PORT. A listener that is left out is not advertised. "
            "Empty: those of listeners, and, where a listener has no host, the address to which the client connected."
        ),
    )
    listener_security_protocol_map: tuple[str, ...] = option(
        ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"),
        doc="Security protocol of each listener, as NAME:PROTOCOL.",
    )
    inter_broker_listener_name: str = option(
        "", doc="Listener that brokers use among themselves. Empty: the one named as security.inter.broker.protocol."
    )
    security_inter_broker_protocol: str = option(
        "PLAINTEXT",
        choices=tuple(SecurityProtocol),
        doc="Security protocol, and so the listener, that brokers use among themselves; inter.broker.listener.name takes precedence.",
    )
    zookeeper_connect: str = option(
        "",
        doc="ZooKeeper servers of a cluster of several processes, as HOST:PORT[,HOST:PORT...], then a /chroot if it has one. Empty: none.",
    )
    zookeeper_session_timeout_ms: int = option(
        18 * SECOND_MS, at_least=1, doc="A broker without a heartbeat to ZooKeeper for this time counts as dead."
    )
    zookeeper_connection_timeout_ms: int = option(-1, at_least=-1, doc="Maximum wait for ZooKeeper at the start; -1 waits without limit.")
    zookeeper_ssl_client_enable: bool = option(
        False,
        doc="Whether connections to ZooKeeper are encrypted with TLS; zookeeper.connect then names ports with TLS (secureClientPort).",
    )
    zookeeper_ssl_keystore_location: str = option("", doc="File with the certificate and key that ZooKeeper asks for, if it does.")
    zookeeper_ssl_keystore_password: Secret = option("", doc="Password of that key store and of its key.")
    zookeeper_ssl_keystore_type: str = option("", choices=("", *STORE_TYPES), doc="Type of that key store. Empty: by the end of its name.")
    zookeeper_ssl_truststore_location: str = option("", doc="File with the authorities of ZooKeeper's certificates.")
    zookeeper_ssl_truststore_password: Secret = option("", doc="Password of that trust store.")
    zookeeper_ssl_truststore_type: str = option(
        "", choices=("", *STORE_TYPES), doc="Type of that trust store. Empty: by the end of its name."
    )
    # Kafka's default is TLSv1.2, with which it cannot connect to ZooKeeper 3.9 with its defaults: that one accepts TLS 1.3 only.
    zookeeper_ssl_protocol: str = option("TLS", choices=("TLS", "TLSv1.2", "TLSv1.3"), doc="Version of TLS to ZooKeeper. TLS: 1.2 or 1.3.")
    zookeeper_ssl_enabled_protocols: tuple[str, ...] = option(
        (), choices=("TLSv1.2", "TLSv1.3"), doc="Allowed versions. Empty: zookeeper.ssl.protocol."
    )
    zookeeper_ssl_cipher_suites: tuple[str, ...] = option((), doc="Allowed cipher suites to ZooKeeper, as in ssl.cipher.suites.")
    zookeeper_ssl_endpoint_identification_algorithm: str = option(
        "HTTPS",
        form=(r"(?i:https)?", "HTTPS or nothing"),
        doc="HTTPS: ZooKeeper's certificate must have the name of its host. Empty: any name is accepted.",
    )
    zookeeper_set_acl: bool = option(
        False,
        doc=(
            "Whether new nodes in ZooKeeper have access rules: only brokers write them; users, settings of brokers and delegation tokens "
            "are not readable by others. Brokers need an identity: a certificate with zookeeper.ssl, ottla.zookeeper.sasl or "
            "ottla.zookeeper.digest."
        ),
    )
    zookeeper_digest: Secret = option(
        "",
        name="ottla.zookeeper.digest",
        doc="Identity of brokers at ZooKeeper in its scheme digest, as USER:PASSWORD. Sent as it is, so use TLS. Empty: none.",
    )
    zookeeper_sasl: Secret = option(
        "",
        name="ottla.zookeeper.sasl",
        doc=(
            "Identity of brokers at ZooKeeper by SASL. USER:PASSWORD is DIGEST-MD5 and needs ottla[zookeeper-sasl]. The login module of "
            "Kerberos as in the Client section of Kafka's JAAS file, com.sun.security.auth.module.Krb5LoginModule with ; at its end, is "
            "GSSAPI and needs ottla[gssapi]. Empty: none."
        ),
    )
    broker_rack: str = option("", doc="Rack or zone of this broker; replicas are spread over racks.")
    log_dirs: tuple[str, ...] = option((), doc="Log directories; partitions are distributed evenly.")
    num_io_threads: int = _cluster_wide(8, at_least=1, doc="Threads for fsync, cold reads and deletions.")
    num_recovery_threads: int = _cluster_wide(
        2,
        name="num.recovery.threads.per.data.dir",
        at_least=1,
        doc="Threads that open and recover the logs of one log directory at the start.",
    )
    socket_request_max_bytes: int = option(100 * MiB, at_least=1, doc="Largest request.")
    first_request_max_bytes: int = option(
        2 * MiB,
        name="ottla.first.request.max.bytes",
        at_least=64,
        doc="Largest request of a connection before its first valid request, or before it is authenticated.",
    )
    queued_max_request_bytes: Long = option(
        -1,
        at_least=-1,
        form=(r"-1|0*[1-9]\d*", "-1 or a number of bytes above 0"),
        doc=(
            "Memory for requests that are being read or handled; a connection waits for its share before its request is read. -1: 256 MiB."
        ),
    )
    handshake_timeout_ms: int = option(
        10 * SECOND_MS, name="ottla.handshake.timeout.ms", at_least=1, doc="Maximum time of the TLS handshake of a connection."
    )
    max_connections: int = _cluster_wide(
        20_000, at_least=0, per_listener=True, doc="Maximum number of open connections; further ones are closed immediately."
    )
    max_connections_per_ip: int = _cluster_wide(2_000, at_least=0, doc="Maximum number of open connections from one address.")
    max_connections_per_ip_overrides: str = _cluster_wide(
        "",
        form=(r"(\s*[^\s,]+:\d{1,9}\s*(,|$))*", "HOST:NUMBER,HOST:NUMBER,..."),
        doc="Maximum numbers of open connections from single addresses or hosts, instead of max.connections.per.ip.",
    )
    max_connection_creation_rate: int = _cluster_wide(
        2**31 - 1,
        at_least=1,
        per_listener=True,
        doc="Maximum number of connections that a broker accepts per second; further clients wait.",
    )
    socket_send_buffer_bytes: int = option(
        -1,
        at_least=-1,
        form=(r"-1|0*[1-9]\d*", "-1 or a number of bytes above 0"),
        doc="Send buffer (SO_SNDBUF) of a connection; -1: the kernel sizes it.",
    )
    socket_receive_buffer_bytes: int = option(
        -1,
        at_least=-1,
        form=(r"-1|0*[1-9]\d*", "-1 or a number of bytes above 0"),
        doc="Receive buffer (SO_RCVBUF) of a connection; -1: the kernel sizes it.",
    )
    request_timeout_ms: int = option(30 * SECOND_MS, at_least=1, doc="Maximum wait for another broker's response to a request.")
    connections_max_idle_ms: Long = option(10 * MINUTE_MS, at_least=-1, doc="A connection without a request for this time is closed.")
    request_read_timeout_ms: int = option(
        30 * SECOND_MS, name="ottla.request.read.timeout.ms", at_least=1, doc="Maximum time from the first to the last byte of a request."
    )
    write_buffer_max_bytes: int = option(
        MiB,
        name="ottla.connection.write.buffer.bytes",
        at_least=KiB,
        doc="Response bytes that a connection may have in memory; above this its next request is not read.",
    )
    answers_max_bytes: Long = option(
        256 * MiB,
        name="ottla.answers.max.bytes",
        at_least=MiB,
        doc="Response bytes that all connections may have in memory; above this those with the most are closed.",
    )
    write_timeout_ms: int = option(
        30 * SECOND_MS,
        name="ottla.connection.write.timeout.ms",
        at_least=1,
        doc="A connection is closed if its client reads no byte of a response for this time.",
    )
    memory_trim_interval_ms: int = option(
        10 * SECOND_MS,
        name="ottla.memory.trim.interval.ms",
        at_least=-1,
        doc="Interval of checks whether freed memory can be returned to the system; -1: never.",
    )
    disk_reserve_bytes: Long = option(
        256 * MiB,
        name="ottla.disk.reserve.bytes",
        at_least=0,
        scope="per-broker",
        doc="Free bytes of a log directory's disk below which produce is refused; fetch, metadata and deletions continue.",
    )
    peers_hosts: str = option(
        "",
        name="ottla.peers.hosts",
        doc=(
            "Hosts, addresses and networks (10.0.0.0/8) from which brokers connect, in addition to the hosts of their registrations, "
            "separated by commas; for brokers behind NAT. *: every address. Other clients cannot send AlterPartition or fetch as a replica."
        ),
    )
    authorizer_class_name: str = option(
        "",
        choices=("", *CLASSES),
        doc="Name of Kafka's authorizer, of release 3.9 or 4: clients need access rules (ACLs). Empty: every client may do everything.",
    )
    super_users: str = option(
        "",
        form=(r"(\s*[^\s:;][^:;]*:[^;]*[^\s;]\s*(;|$))*\s*", "User:NAME;User:NAME;..."),
        doc="Principals that may do everything, as User:NAME;User:NAME. The brokers' own principal is usually one of them.",
    )
    allow_everyone_if_no_acl_found: bool = option(False, doc="Whether every client may use a resource that no access rule is about.")
    audit_log: str = option(
        "",
        name="ottla.audit.log",
        doc="File for the audit log, with a JSON object per line. Rotated to FILE.1 at 16 MiB. Empty: the server's log has it.",
    )
    audit_allowed: bool = option(
        False,
        name="ottla.audit.allowed",
        doc="Whether the audit log also has what was allowed; Kafka's authorizer logger has it at level DEBUG.",
    )
    request_slow_ms: int = _cluster_wide(
        1_000,
        name="ottla.request.slow.ms",
        at_least=-1,
        doc="A request that takes longer is logged, without the time that the client allows it to wait; at most ten a minute. -1: none.",
    )
    metrics_topics_max: int = _cluster_wide(
        5_000,
        name="ottla.series.topics.max",
        at_least=0,
        doc="Topics with metrics of their own. The others count in the totals of the broker.",
    )
    metrics_partitions_max: int = _cluster_wide(
        20_000,
        name="ottla.series.partitions.max",
        at_least=0,
        doc="Partitions of this broker with metrics of their own. The others count in the totals of the broker.",
    )
    metrics_group_partitions_max: int = _cluster_wide(
        20_000, name="ottla.series.group.partitions.max", at_least=0, doc="Committed offsets of groups with metrics of their own."
    )
    client_metrics_enable: bool = option(
        False,
        name="ottla.client.metrics.enable",
        doc="Whether clients can push their metrics to this broker (KIP-714), as far as settings of client metrics ask for them.",
    )
    telemetry_max_bytes: int = option(MiB, at_least=1, doc="Largest push of a client's metrics, compressed as it is sent.")
    recorder_bytes: int = option(
        4 * MiB,
        name="ottla.flight.recorder.bytes",
        at_least=0,
        doc="Memory for the last events, which a failure writes to a flight record.",
    )
    timeline_entries: int = option(
        5_000,
        name="ottla.timeline.entries",
        at_least=0,
        doc="Latest changes of groups, partitions, transactions and the controller that a broker keeps, of each kind, for /timeline.",
    )


class ClusterOptions(SchemaRegistryOptions):
    """Settings of the broker's decisions: topics, requests, cleanup."""

    num_partitions: int = _cluster_wide(1, at_least=1, doc="Default number of partitions of a topic.")
    default_replication_factor: int = option(1, at_least=1, doc="Default number of replicas of a partition.")
    num_replica_fetchers: int = _cluster_wide(1, at_least=1, doc="Number of concurrent fetch requests to one leading broker.")
    replica_fetch_max_bytes: int = option(
        MiB, at_least=0, doc="Maximum bytes of one partition in a follower's fetch; a larger first batch is returned whole."
    )
    replica_fetch_response_max_bytes: int = option(10 * MiB, at_least=0, doc="Maximum bytes of a response to a follower's fetch.")
    replica_fetch_wait_max_ms: int = option(
        SECOND_MS // 2, at_least=1, doc="Maximum time that a leader waits for records before it answers a follower."
    )
    replica_fetch_min_bytes: int = option(1, at_least=1, doc="Bytes with which a leader answers a follower without waiting.")
    replica_fetch_backoff_ms: int = option(SECOND_MS, at_least=1, doc="Maximum wait before a follower retries after an error.")
    replica_lag_time_max_ms: Long = option(
        30 * SECOND_MS, at_least=1, doc="A follower that has not caught up with its leader for this time leaves the ISR."
    )
    stray_retention_ms: Long = _cluster_wide(
        7 * DAY_MS,
        name="ottla.stray.retention.ms",
        at_least=-1,
        doc=(
            "How long a broker keeps the logs of topics that were deleted while it was down, under names that end in -stray; "
            "-1 means no limit."
        ),
    )
    controlled_shutdown_enable: bool = option(True, doc="Whether a broker transfers the leadership of its partitions before it stops.")
    controlled_shutdown_max_retries: int = option(3, at_least=0, doc="Maximum number of attempts of a controlled shutdown.")
    controlled_shutdown_retry_backoff_ms: Long = option(
        5 * SECOND_MS, at_least=1, doc="Wait between two attempts of a controlled shutdown."
    )
    auto_leader_rebalance_enable: bool = option(
        True, doc="Whether the controller periodically restores preferred leaders where too many partitions have another one."
    )
    leader_imbalance_check_interval_seconds: Long = option(300, at_least=1, doc="Interval of checks for leader imbalance.")
    leader_imbalance_per_broker_percentage: int = option(
        10,
        at_least=0,
        doc="Percentage of the partitions that prefer a broker which may have another leader before leadership is moved back.",
    )
    leader_replication_throttled_rate: Long = _cluster_wide(
        INT64_MAX,
        at_least=0,
        doc="Maximum bytes per second that followers fetch from this broker, of partitions in leader.replication.throttled.replicas.",
    )
    follower_replication_throttled_rate: Long = _cluster_wide(
        INT64_MAX,
        at_least=0,
        doc="Maximum bytes per second that this broker copies, of partitions in follower.replication.throttled.replicas.",
    )
    quota_window_num: int = option(11, at_least=1, doc="Number of samples of the rates of client quotas.")
    quota_window_size_seconds: int = option(1, at_least=1, doc="Length of a sample of the rates of client quotas.")
    controller_quota_window_num: int = option(
        11, at_least=1, doc="Number of samples of controller_mutation_rate; a client may create the partitions of all samples at once."
    )
    controller_quota_window_size_seconds: int = option(1, at_least=1, doc="Length of a sample of controller_mutation_rate.")
    quota_clients_max: int = _cluster_wide(
        20_000,
        name="ottla.quota.clients.max",
        at_least=1,
        doc=(
            "Maximum number of users and client ids, counted per quota, whose usage a broker keeps, about 2 KB each; above this the "
            "one that is idle for longest starts anew."
        ),
    )
    replica_selector_class: str = option(
        LEADER_SELECTOR,
        choices=SELECTORS,
        doc="Replica from which consumers read: the leader, or, with RackAwareReplicaSelector, one in their own rack (client.rack).",
    )
    log_dir_failure_timeout_ms: Long = option(
        30 * SECOND_MS, at_least=1, doc="A broker stops if it cannot report a failed log directory to the controller within this time."
    )
    auto_create_topics_enable: bool = option(True, doc="Whether a topic is created when a client that allows it requests its metadata.")
    delete_topic_enable: bool = option(True, doc="Whether topics can be deleted.")
    partitions_max: int = _cluster_wide(
        20_000, name="ottla.partitions.max", at_least=1, doc="Maximum number of partitions in this cluster."
    )
    partitions_per_request_max: int = option(
        10_000, name="ottla.partitions.per.request.max", at_least=1, doc="Maximum number of partitions that one request may create."
    )
    fetch_max_bytes: int = option(55 * MiB, at_least=1024, doc="Maximum size of a fetch response.")
    fetch_sessions_max: int = option(
        1_000,
        name="max.incremental.fetch.session.cache.slots",
        at_least=0,
        doc="Maximum number of incremental fetch sessions; a larger session evicts a smaller one that is older than two minutes.",
    )
    fetch_session_partitions_max: int = option(
        20_000,
        name="ottla.fetch.session.partitions.max",
        at_least=1,
        doc="Maximum number of partitions of one incremental fetch session; a larger fetch is served without a session.",
    )
    fetch_sessions_partitions_max: int = option(
        200_000,
        name="ottla.fetch.sessions.partitions.max",
        at_least=1,
        doc=(
            "Maximum number of partitions in the fetch sessions of all consumers, about 400 bytes each; further fetches are "
            "served without a session."
        ),
    )
    fetch_waiting_partitions_max: int = option(
        200_000,
        name="ottla.fetch.waiting.partitions.max",
        at_least=1,
        doc=(
            "Maximum number of partitions in waiting fetches of consumers without a session, about 600 bytes each; further "
            "fetches are answered immediately."
        ),
    )
    request_partitions_max: int = option(
        2_000,
        name="max.request.partition.size.limit",
        at_least=1,
        doc="Maximum number of partitions in a DescribeTopicPartitions response.",
    )
    topics_creating_max: int = option(
        100,
        name="ottla.auto.create.topics.max",
        at_least=1,
        doc="Maximum number of topics that are being created automatically; clients retry for others.",
    )
    log_retention_check_interval_ms: Long = option(5 * MINUTE_MS, at_least=1, doc="Interval of checks for segments to delete.")
    log_flush_checkpoint_interval_ms: int = option(
        MINUTE_MS,
        name="log.flush.offset.checkpoint.interval.ms",
        at_least=1,
        doc="Interval of writing the checkpoints: recovery points, log start offsets and high watermarks.",
    )
    producer_id_expiration_ms: int = _cluster_wide(DAY_MS, at_least=1, doc="The state of an idle producer is removed after this time.")
    producer_ids_max: int = _cluster_wide(
        500_000,
        name="ottla.producer.ids.max",
        at_least=1,
        doc=(
            "Maximum number of producers, counted per partition, whose state a broker keeps, about 450 bytes each; above this "
            "those idle for longest are removed before producer.id.expiration.ms."
        ),
    )
    overrides_max_bytes: int = _cluster_wide(
        128 * KiB,
        name="ottla.config.overrides.max.bytes",
        at_least=KiB,
        doc=(
            "Maximum bytes of the names and values that AlterConfigs, IncrementalAlterConfigs and CreateTopics may set for "
            "one topic, broker or group."
        ),
    )
    config_max_bytes: Long = _cluster_wide(
        64 * MiB,
        name="ottla.config.max.bytes",
        at_least=KiB,
        doc="Memory for the settings of all topics, brokers and groups; further ones are refused with POLICY_VIOLATION.",
    )
    max_decompressed_ratio: int = option(
        100,
        name="ottla.decompressed.ratio.max",
        at_least=1,
        doc="A compressed batch that grows by more than this factor (above 16 MiB) is refused.",
    )
    group_initial_rebalance_delay_ms: int = option(
        3 * SECOND_MS, at_least=0, doc="How long an empty group waits for further members after the first JoinGroup."
    )
    group_min_session_timeout_ms: int = option(6 * SECOND_MS, at_least=0, doc="Minimum session timeout of a member.")
    group_max_session_timeout_ms: int = option(30 * MINUTE_MS, at_least=0, doc="Maximum session timeout of a member.")
    group_max_size: int = option(2**31 - 1, at_least=1, doc="Maximum number of members of a classic group.")
    group_member_max_bytes: int = _cluster_wide(
        4 * MiB,
        name="ottla.group.member.max.bytes",
        at_least=4 * KiB,
        doc=(
            "Memory for one member of a group: its subscription, protocols, names and assignment. A larger JoinGroup, "
            "SyncGroup or ConsumerGroupHeartbeat is refused with INVALID_REQUEST."
        ),
    )
    group_max_bytes: int = _cluster_wide(
        32 * MiB,
        name="ottla.group.max.bytes",
        at_least=4 * KiB,
        doc=(
            "Memory for the members of one group, and so the largest JoinGroup response of its leader. A request above it is "
            "refused with GROUP_MAX_SIZE_REACHED."
        ),
    )
    groups_max_bytes: Long = _cluster_wide(
        256 * MiB,
        name="ottla.groups.max.bytes",
        at_least=4 * KiB,
        doc=(
            "Memory for the members of all groups that a broker coordinates. A request above it is refused with "
            "GROUP_MAX_SIZE_REACHED; groups that do not grow are not affected."
        ),
    )
    group_pending_members_max: int = _cluster_wide(
        10_000,
        name="ottla.group.pending.members.max",
        at_least=1,
        doc="Maximum number of member ids of a group that are allocated and not joined; a further one replaces the oldest.",
    )
    group_patterns_max: int = _cluster_wide(
        16,
        name="ottla.group.consumer.patterns.max",
        at_least=1,
        doc="Maximum number of different regular expressions in the subscriptions of one consumer group.",
    )
    group_offsets_max_bytes: Long = _cluster_wide(
        256 * MiB,
        name="ottla.group.offsets.max.bytes",
        at_least=4 * KiB,
        doc=(
            "Memory for the committed offsets of all groups that a broker coordinates, about 200 bytes each without metadata. "
            "Further ones are refused with INVALID_COMMIT_OFFSET_SIZE; commits that replace others are accepted."
        ),
    )
    offset_metadata_max_bytes: int = option(4096, at_least=0, doc="Maximum size of the metadata of a committed offset.")
    offsets_retention_minutes: int = option(
        7 * DAY_MS // MINUTE_MS,
        at_least=1,
        doc="How long committed offsets are kept after their group became empty, or, without a group, after the commit.",
    )
    offsets_retention_check_interval_ms: Long = option(10 * MINUTE_MS, at_least=1, doc="Interval of checks for expired offsets.")
    offsets_topic_num_partitions: int = option(
        50, at_least=1, doc="Number of partitions of __consumer_offsets; applies when the topic is created."
    )
    offsets_topic_replication_factor: int = option(
        3,
        at_least=1,
        doc=(
            "Replication factor of __consumer_offsets. If set, the topic is created only when so many brokers are alive. If "
            "not set, it is created with the brokers that are alive, and the controller adds replicas when more brokers "
            "register."
        ),
    )
    offsets_topic_segment_bytes: int = option(
        100 * MiB, at_least=1, doc="Segment size of __consumer_offsets; applies when the topic is created."
    )
    offsets_topic_compression_codec: int = option(
        0, at_least=0, at_most=4, doc="Codec of the batches in __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."
    )
    offsets_commit_timeout_ms: int = option(
        5 * SECOND_MS,
        at_least=1,
        doc="Maximum wait until all in-sync replicas have a committed offset; the client then gets COORDINATOR_NOT_AVAILABLE and retries.",
    )
    transaction_state_log_num_partitions: int = option(
        50, at_least=1, doc="Number of partitions of __transaction_state; applies when the topic is created."
    )
    transaction_state_log_replication_factor: int = option(
        3,
        at_least=1,
        doc=(
            "Replication factor of __transaction_state. If set, the topic is created only when so many brokers are alive. If "
            "not set, it is created with the brokers that are alive, and the controller adds replicas when more brokers "
            "register."
        ),
    )
    transaction_state_log_min_isr: int = option(
        2,
        at_least=1,
        doc=(
            "min.insync.replicas of __transaction_state; applies when the topic is created. If not set, it is less than the "
            "number of replicas, and at least 1."
        ),
    )
    transaction_state_log_segment_bytes: int = option(
        100 * MiB, at_least=1, doc="Segment size of __transaction_state; applies when the topic is created."
    )
    transaction_partition_verification_enable: bool = _cluster_wide(
        True,
        doc=(
            "Whether a leader verifies that a transaction has the partition before it appends the transaction's first batch. "
            "Without it, a late record of an ended transaction can stop read_committed consumers."
        ),
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = _cluster_wide(
        100,
        at_least=0,
        doc="How long a coordinator waits for the markers of the last transaction before it refuses to add partitions to the next one.",
    )
    transaction_max_timeout_ms: int = option(
        15 * MINUTE_MS,
        at_least=1,
        doc="Maximum of transaction.timeout.ms of producers; a larger one is refused with INVALID_TRANSACTION_TIMEOUT.",
    )
    transaction_two_phase_commit_enable: bool = option(
        False,
        doc=(
            "Whether producers may use two-phase commit (KIP-939): their transactions have no timeout, and a producer can come "
            "back to its prepared transaction. InitProducerId 6 is served only then."
        ),
    )
    transactional_id_expiration_ms: int = option(
        7 * DAY_MS, at_least=1, doc="A transactional id without a transaction is deleted this long after its last change."
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = option(
        10 * SECOND_MS, at_least=1, doc="Interval of checks for transactions that have timed out."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = option(
        HOUR_MS, at_least=1, doc="Interval of checks for transactional ids that have expired."
    )
    transactions_max_bytes: Long = _cluster_wide(
        256 * MiB,
        name="ottla.transactions.max.bytes",
        at_least=4 * KiB,
        doc=(
            "Memory for the transactional ids that a broker coordinates, about 1 KB each. A new id above it is refused with "
            "POLICY_VIOLATION; known ids are not affected."
        ),
    )
    log_scrub_interval_ms: Long = _cluster_wide(
        7 * DAY_MS,
        name="ottla.log.scrub.interval.ms",
        at_least=-1,
        doc="Time in which every log is read once and compared with its checksums, offsets and indexes; 0 or -1: never.",
    )
    log_scrub_bytes_per_second: float = _cluster_wide(
        0.0,
        name="ottla.log.scrub.io.max.bytes.per.second",
        at_least=0,
        doc=(
            "Maximum bytes that the scrub reads per second. 0 computes the rate: a pass takes half of "
            "ottla.log.scrub.interval.ms, at 1 MiB per second or more."
        ),
    )
    log_cleaner_enable: bool = option(True, doc="Whether topics with cleanup.policy=compact are compacted.")
    log_cleaner_threads: int = _cluster_wide(
        1, at_least=1, doc="Number of partitions that are compacted at the same time, each in a thread."
    )
    log_cleaner_dedupe_buffer_size: Long = _cluster_wide(
        128 * MiB,
        at_least=KiB,
        doc=(
            "Memory for the keys of dirty records, 24 bytes each, in all threads. A log whose keys exceed a thread's share is "
            "compacted in several rounds."
        ),
    )
    log_cleaner_load_factor: float = _cluster_wide(
        0.9,
        name="log.cleaner.io.buffer.load.factor",
        at_least=0.01,
        at_most=0.99,
        doc="Maximum load factor of the key buffer; a higher one is slower.",
    )
    log_cleaner_io_buffer_size: int = _cluster_wide(
        512 * KiB, at_least=KiB, doc="Size of the read and write buffers of compaction, in all threads."
    )
    log_cleaner_io_max_bytes_per_second: float = _cluster_wide(
        1.7976931348623157e308, at_least=1, doc="Maximum bytes that compaction reads and writes per second, in all threads."
    )
    log_cleaner_backoff_ms: Long = _cluster_wide(
        15 * SECOND_MS, at_least=0, doc="Interval of checks for logs to compact while none is due."
    )
    group_consumer_session_timeout_ms: int = option(
        45 * SECOND_MS,
        at_least=1,
        doc=(
            "A member of a consumer group without a heartbeat for this time is removed; consumer.session.timeout.ms of the "
            "group takes precedence."
        ),
    )
    group_consumer_min_session_timeout_ms: int = option(45 * SECOND_MS, at_least=1, doc="Minimum of consumer.session.timeout.ms.")
    group_consumer_max_session_timeout_ms: int = option(MINUTE_MS, at_least=1, doc="Maximum of consumer.session.timeout.ms.")
    group_consumer_heartbeat_interval_ms: int = option(
        5 * SECOND_MS,
        at_least=1,
        doc="Heartbeat interval of members of consumer groups; consumer.heartbeat.interval.ms of the group takes precedence.",
    )
    group_consumer_min_heartbeat_interval_ms: int = option(5 * SECOND_MS, at_least=1, doc="Minimum of consumer.heartbeat.interval.ms.")
    group_consumer_max_heartbeat_interval_ms: int = option(15 * SECOND_MS, at_least=1, doc="Maximum of consumer.heartbeat.interval.ms.")
    group_consumer_unsettled_interval_ms: int = option(
        SECOND_MS // 2,
        name="ottla.group.consumer.unsettled.heartbeat.interval.ms",
        at_least=1,
        doc="Heartbeat interval while a group rebalances, if it is shorter: a member learns its assignment only in a heartbeat response.",
    )
    group_consumer_max_size: int = option(2**31 - 1, at_least=1, doc="Maximum number of members of a consumer group.")
    group_consumer_assignors: tuple[str, ...] = option(
        ("uniform", "range"),
        choices=("uniform", "range"),
        doc="Assignors that members of consumer groups may select; the first is the default.",
    )
    group_consumer_assignment_interval_ms: int = _cluster_wide(
        SECOND_MS,
        at_least=0,
        doc=(
            "Minimum interval between two assignments of a consumer group, so that many joins cause one change; "
            "consumer.assignment.interval.ms of the group takes precedence."
        ),
    )
    group_consumer_min_assignment_interval_ms: int = option(0, at_least=0, doc="Minimum of consumer.assignment.interval.ms.")
    group_consumer_max_assignment_interval_ms: int = option(15 * SECOND_MS, at_least=0, doc="Maximum of consumer.assignment.interval.ms.")
    group_consumer_migration_policy: str = option(
        "bidirectional",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
        doc=(
            "Whether a classic group of consumers is converted when its first member uses the consumer protocol, and "
            "converted back after its last such member leaves."
        ),
    )
    log_roll_hours: int = option(168, at_least=1, doc="Default of segment.ms, in hours; log.roll.ms takes precedence.")
    log_roll_jitter_hours: int = option(0, at_least=0, doc="Default of segment.jitter.ms, in hours; log.roll.jitter.ms takes precedence.")
    log_retention_hours: int = _cluster_wide(
        168, doc="Default of retention.ms, in hours; log.retention.minutes and log.retention.ms take precedence."
    )
    log_retention_minutes: int = _cluster_wide(None, doc="Default of retention.ms, in minutes; log.retention.ms takes precedence.")
    log_flush_scheduler_interval_ms: Long = option(
        INT64_MAX,
        at_least=1,
        doc=(
            "With write.caching=true: interval of checks whether flush.ms requires a flush, and the default of "
            "log.flush.interval.ms; checked every second if not set."
        ),
    )


def topic_defaults() -> dict[str, OptionSpec]:
    """The broker defaults of topic settings, by first synonym, with the value that a topic gets without overrides."""
    return {
        spec.synonyms[0]: replace(
            spec,
            name=spec.synonyms[0],
            doc=f"Default of the topic setting {spec.name}. {spec.doc}",
            scope="cluster-wide",
            synonyms=(),
        )
        for spec in TopicOptions.SPECS.values()
        if spec.synonyms
    }


#: Milliseconds per unit of settings that give a topic default in hours or minutes.
UNITS_MS = {
    "log.retention.minutes": MINUTE_MS,
    "log.retention.hours": HOUR_MS,
    "log.roll.hours": HOUR_MS,
    "log.roll.jitter.hours": HOUR_MS,
}


class BrokerOptions(ServerOptions, ClusterOptions, SaslOptions):
    """All settings that a broker reads itself; defaults of topics are in ``Settings``."""


class ClientMetricsOptions(Options):
    """Settings of one subscription of client metrics. Source: KIP-714."""

    metrics: tuple[str, ...] = option((), doc="Prefixes of the metrics that matching clients push. *: all metrics. Empty: none.")
    interval_ms: int = option(5 * MINUTE_MS, at_least=100, at_most=HOUR_MS, doc="Interval at which matching clients push their metrics.")
    match: tuple[str, ...] = option(
        (),
        doc="Patterns ATTRIBUTE=REGEX of clients, all of which must match. Attributes: client_instance_id, client_id, "
        "client_software_name, client_software_version, client_source_address. Empty: all clients.",
    )


class GroupOptions(Options):
    """Settings of one group of the consumer protocol, over the broker's."""

    consumer_session_timeout_ms: int = option(
        45 * SECOND_MS,
        at_least=1,
        synonyms=("group.consumer.session.timeout.ms",),
        doc="A member without a heartbeat for this time is removed.",
    )
    consumer_heartbeat_interval_ms: int = option(
        5 * SECOND_MS, at_least=1, synonyms=("group.consumer.heartbeat.interval.ms",), doc="Heartbeat interval of members."
    )
    consumer_assignment_interval_ms: int = option(
        SECOND_MS, at_least=0, synonyms=("group.consumer.assignment.interval.ms",), doc="Minimum interval between two assignments."
    )


#: ``listener.name.NAME.SETTING`` is a setting of the listener NAME, in lower case.
LISTENER_PREFIX = "listener.name."


class Settings:
    """Settings at the start of a broker: its own, and the defaults of its topics.

    ``texts`` has the given settings as text, by Kafka's name; ``plugins`` those under names that only plugins and tools know, which
    have no effect. Raises: ConfigError with the name of an unknown or invalid one.
    """

    __slots__ = ("options", "plugins", "texts", "topic")

    def __init__(self, texts: Mapping[str, str] | None = None, plugins: Mapping[str, str] | None = None) -> None:
        self.texts = dict(texts or {})
        self.plugins = dict(plugins or {})
        for name, text in self.texts.items():
            spec = broker_spec(name)
            if spec is None:
                raise ConfigError(name, "unknown setting" + suggestion(name, SPECS_BY_NAME))
            if name not in SPECS_BY_NAME:
                spec.parse(text)
        self.options = BrokerOptions.of({name: text for name, text in self.texts.items() if name in BrokerOptions.SPECS})
        self.topic = TopicOptions.of(topic_texts(self.texts))


def topic_texts(texts: Mapping[str, str]) -> dict[str, str]:
    """Topic settings that follow from broker settings: the first synonym given wins; hours and minutes become ms."""
    found: dict[str, str] = {}
    for spec in TopicOptions.SPECS.values():
        for synonym in spec.synonyms:
            if synonym in texts:
                value = SPECS_BY_NAME[synonym].parse(texts[synonym])
                unit = UNITS_MS.get(synonym)
                found[spec.name] = str(-1 if value < 0 else value * unit) if unit else texts[synonym]
                break
    return found


def unreadable(image: Image, kind: str, name: str) -> dict[str, str]:
    """Stored overrides of an entity that cannot be parsed, with the reason: brokers do not write such values, other tools may. They are
    ignored.
    """
    spec_of = {"topics": TopicOptions.SPECS.get, "groups": GroupOptions.SPECS.get, "client-metrics": ClientMetricsOptions.SPECS.get}.get(
        kind, broker_spec
    )
    wrong: dict[str, str] = {}
    for setting, text in image.overrides(kind, name).items():
        try:
            if spec := spec_of(setting):
                spec.parse(text)
        except ConfigError as error:
            wrong[setting] = str(error)
    return wrong


def _overrides(image: Image, kind: str, name: str) -> dict[str, str]:
    """Valid overrides of an entity."""
    found = image.overrides(kind, name)
    wrong = unreadable(image, kind, name) if found else {}
    return {setting: text for setting, text in found.items() if setting not in wrong} if wrong else found


def check_size(options: ClusterOptions, owner: str, overrides: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Refuses overrides of an entity that are too many or too long and grow. Raises: ConfigError."""
    size, before = (sum(len(name.encode()) + len(text.encode()) for name, text in texts.items()) for texts in (overrides, present))
    size += len(owner.encode())
    limit = options.overrides_max_bytes
    if size > limit and size > before + len(owner.encode()):
        name = max(overrides, key=lambda name: len(overrides[name]))
        raise ConfigError(name, f"with it the settings have {size} bytes, and ottla.config.overrides.max.bytes is {limit}")


def broker_texts(settings: Settings, image: Image, broker_id: int) -> dict[str, str]:
    """Broker settings in effect, as text: this broker's dynamic ones, over the cluster's, over those of the start."""
    return {**settings.texts, **_overrides(image, "brokers", DEFAULT_ENTITY), **_overrides(image, "brokers", str(broker_id))}


def broker_options(settings: Settings, image: Image, broker_id: int) -> BrokerOptions:
    """Broker settings in effect: dynamic overrides over those of the start. Only dynamic settings are overridden."""
    changed = {**_overrides(image, "brokers", DEFAULT_ENTITY), **_overrides(image, "brokers", str(broker_id))}
    known = {name: text for name, text in changed.items() if name in BrokerOptions.SPECS and BrokerOptions.SPECS[name].scope != "read-only"}
    return BrokerOptions.of(known, base=settings.options)


def listener_options(settings: Settings, image: Image, broker_id: int, listener: str, mechanism: str = "") -> BrokerOptions:
    """Settings in effect for one listener, or for one SASL mechanism of it: those with its prefix over those of the broker.

    Source: KIP-103, KIP-226.
    """
    return with_prefix(broker_texts(settings, image, broker_id), listener, broker_options(settings, image, broker_id), mechanism)


def with_prefix(texts: Mapping[str, str], listener: str, base: BrokerOptions, mechanism: str = "") -> BrokerOptions:
    """The settings in ``texts`` with the prefix of a listener, and of a mechanism of it, over ``base``. Raises: ConfigError."""
    own: dict[str, str] = {}
    of_mechanism: dict[str, str] = {}
    for name, text in texts.items():
        if name.startswith(LISTENER_PREFIX) and (found := listener_setting(name)) is not None and found.listener == listener.lower():
            if not found.mechanism:
                own[found.spec.name] = text
            elif found.mechanism == mechanism.lower():
                of_mechanism[found.spec.name] = text
    return BrokerOptions.of({**own, **of_mechanism}, base=base)


def topic_options(settings: Settings, image: Image, topic: str, broker_id: int) -> TopicOptions:
    """Topic settings in effect: overrides over the broker's defaults."""
    base = settings.topic
    if image.overrides("brokers", DEFAULT_ENTITY) or image.overrides("brokers", str(broker_id)):
        base = TopicOptions.of(topic_texts(broker_texts(settings, image, broker_id)))
    overrides = _overrides(image, "topics", topic)
    known = {name: text for name, text in overrides.items() if name in TopicOptions.SPECS}
    return TopicOptions.of(known, base=base) if known else base


def group_options(options: BrokerOptions, image: Image, group_id: str) -> GroupOptions:
    """Group settings in effect: overrides over the broker's."""
    base = GroupOptions()
    base.consumer_session_timeout_ms = options.group_consumer_session_timeout_ms
    base.consumer_heartbeat_interval_ms = options.group_consumer_heartbeat_interval_ms
    base.consumer_assignment_interval_ms = options.group_consumer_assignment_interval_ms
    overrides = _overrides(image, "groups", group_id)
    known = {name: text for name, text in overrides.items() if name in GroupOptions.SPECS}
    return GroupOptions.of(known, base=base) if known else base


#: All names that a broker accepts.
SPECS_BY_NAME: dict[str, OptionSpec] = {**topic_defaults(), **BrokerOptions.SPECS}


class ListenerSetting(NamedTuple):
    """``listener.name.LISTENER.SETTING`` or ``listener.name.LISTENER.MECHANISM.SETTING``."""

    listener: str
    spec: OptionSpec
    #: SASL mechanism in lower case; empty without one.
    mechanism: str = ""


def listener_setting(name: str) -> ListenerSetting | None:
    """The parts of a setting of one listener; None if the setting cannot have a value for one listener."""
    rest = name.removeprefix(LISTENER_PREFIX)
    for at, character in enumerate(rest if name.startswith(LISTENER_PREFIX) else ""):
        spec = SPECS_BY_NAME.get(rest[at + 1 :]) if character == "." else None
        if spec is None:
            continue
        listener, dot, mechanism = rest[:at].rpartition(".")
        if spec.per_mechanism and dot and listener and mechanism.upper() in MECHANISMS:
            return ListenerSetting(listener, spec, mechanism)
        return ListenerSetting(rest[:at], spec) if at and spec.per_listener else None
    return None


@lru_cache(1_000)
def broker_spec(name: str) -> OptionSpec | None:
    """The declaration of a broker setting, also of one with the prefix of a listener."""
    found = SPECS_BY_NAME.get(name)
    if found is None and (own := listener_setting(name)) is not None:
        found = replace(own.spec, name=name)
        if own.spec.check is login_module:
            found = replace(found, check=partial(login_module, mechanism=own.mechanism.upper()))
    return found
