"""The metrics of /metrics: each is declared once, here. The reference page and the exposition follow from the declarations.

Names without the prefix ``ottla_`` are those of others, so that dashboards for Kafka work unchanged: ``kafka_server_...`` is what the JMX
exporter makes of Kafka's MBeans with the rules that Strimzi, and most others, use; ``kafka_topic_...`` and ``kafka_consumergroup_...`` are
kafka_exporter's; ``jvm_...`` are figures of the Python process under the names that such dashboards draw. Every series of a broker has the
label ``broker``, because several can share a process; see ``OF_PROCESS``.
"""

from typing import NamedTuple

GAUGE, COUNTER, SUMMARY, HISTOGRAM = "gauge", "counter", "summary", "histogram"


class Family(NamedTuple):
    """A metric."""

    name: str
    kind: str
    help: str
    #: Names of its labels, besides ``broker``, ``quantile`` and ``le``.
    labels: tuple[str, ...] = ()


#: By name.
FAMILIES: dict[str, Family] = {}


def _family(name: str, kind: str, help: str, *labels: str) -> Family:
    assert name not in FAMILIES, f"{name} is declared once"
    assert (kind == COUNTER) == name.endswith("_total"), f"{name}: counters end in _total, and nothing else does"
    found = FAMILIES[name] = Family(name, kind, help, labels)
    return found


def _topic_counters(names: dict[str, tuple[str, str]]) -> dict[str, Family]:
    """By attribute of TopicTraffic."""
    return {
        attribute: _family(f"kafka_server_brokertopicmetrics_{suffix}_total", COUNTER, help, "topic")
        for attribute, (suffix, help) in names.items()
    }


def _gauges(prefix: str, helps: dict[str, str], *labels: str) -> dict[str, Family]:
    """Gauges by the end of their name."""
    return {suffix: _family(prefix + suffix, GAUGE, help, *labels) for suffix, help in helps.items()}


TOPICS = _topic_counters(
    {
        "messages_in": ("messagesin", "Records that clients produced; topic '': all topics."),
        "bytes_in": ("bytesin", "Bytes of batches that clients produced; topic '': all topics."),
        "bytes_out": ("bytesout", "Bytes of batches sent to consumers; topic '': all topics."),
        "bytes_rejected": ("bytesrejected", "Bytes of batches that were refused because of their size; topic '': all topics."),
        "produce_requests": ("totalproducerequests", "Partitions in Produce requests; topic '': all topics."),
        "fetch_requests": ("totalfetchrequests", "Partitions in responses to consumers' Fetch requests; topic '': all topics."),
        "failed_produce_requests": ("failedproducerequests", "Partitions in Produce requests that got an error; topic '': all topics."),
        "failed_fetch_requests": ("failedfetchrequests", "Partitions in Fetch requests that got an error; topic '': all topics."),
        "replication_bytes_in": ("replicationbytesin", "Bytes copied from leaders; topic '': all topics."),
        "replication_bytes_out": ("replicationbytesout", "Bytes copied by followers; topic '': all topics."),
    }
)

REPLICA_MANAGER = _gauges(
    "kafka_server_replicamanager_",
    {
        "leadercount": "Partitions that this broker leads.",
        "partitioncount": "Replicas on this broker.",
        "offlinereplicacount": "Replicas in log directories that failed.",
        "underreplicatedpartitions": "Partitions led here with replicas that are not in sync.",
        "underminisrpartitioncount": "Partitions led here with fewer in-sync replicas than min.insync.replicas.",
        "atminisrpartitioncount": "Partitions led here with exactly min.insync.replicas in-sync replicas.",
        "reassigningpartitions": "Partitions led here that are being reassigned.",
    },
)
ISR_SHRINKS = _family("kafka_server_replicamanager_isrshrinks_total", COUNTER, "Members that left the ISR of a partition led here.")
ISR_EXPANDS = _family("kafka_server_replicamanager_isrexpands_total", COUNTER, "Members that joined the ISR of a partition led here.")

LOG = _gauges(
    "kafka_log_log_",
    {
        "size": "Bytes of a replica's segments.",
        "logstartoffset": "First offset of a replica.",
        "logendoffset": "Offset after the last record of a replica.",
        "numlogsegments": "Segments of a replica.",
    },
    "topic",
    "partition",
)
PARTITION = _gauges(
    "kafka_cluster_partition_",
    {
        "insyncreplicascount": "In-sync replicas of a partition led here.",
        "replicascount": "Replicas of a partition led here.",
        "underreplicated": "1 if a partition led here has replicas that are not in sync.",
        "underminisr": "1 if a partition led here has fewer than min.insync.replicas in-sync replicas.",
        "atminisr": "1 if a partition led here has exactly min.insync.replicas in-sync replicas.",
    },
    "topic",
    "partition",
)
TOPIC_PARTITION = _gauges(
    "kafka_topic_partition_",
    {
        "current_offset": "High watermark of a partition led here.",
        "oldest_offset": "First offset of a partition led here.",
        "in_sync_replica": "In-sync replicas of a partition led here.",
        "replicas": "Replicas of a partition led here.",
        "leader": "Broker id of the leader, for a partition led here.",
        "leader_is_preferred": "1 if the leader is the preferred one, for a partition led here.",
        "under_replicated_partition": "1 if a partition led here has replicas that are not in sync.",
    },
    "topic",
    "partition",
)
TOPIC_PARTITIONS = _family("kafka_topic_partitions", GAUGE, "Partitions of a topic; from the controller.", "topic")
BROKERS = _family("kafka_brokers", GAUGE, "Registered brokers; from the controller.")
BROKER_INFO = _family("kafka_broker_info", GAUGE, "1 for each registered broker; from the controller.", "id", "address")

CONTROLLER = _gauges(
    "kafka_controller_kafkacontroller_",
    {
        "activecontrollercount": "1 if this broker is the controller.",
        "offlinepartitionscount": "Partitions of the cluster without a leader; 0 if this broker is not the controller.",
        "preferredreplicaimbalancecount": "Partitions of the cluster whose leader is not the preferred one; from the controller.",
        "globaltopiccount": "Topics of the cluster; from the controller.",
        "globalpartitioncount": "Partitions of the cluster; from the controller.",
        "activebrokercount": "Registered brokers that are not fenced; from the controller.",
        "fencedbrokercount": "Registered brokers that are fenced; from the controller.",
        "topicstodeletecount": "Topics that are being deleted; from the controller.",
    },
)
UNCLEAN_ELECTIONS = _family(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    COUNTER,
    "Elections by this broker as controller that may lose records.",
)
LEADER_ELECTIONS = _family("ottla_controller_leader_elections_total", COUNTER, "Leaders that this broker elected as controller.")

REQUESTS = _family(
    "kafka_network_requestmetrics_requests_total", COUNTER, "Requests since the start, of all brokers of the process.", "request"
)
TOTAL_TIME = _family(
    "kafka_network_requestmetrics_totaltimems",
    SUMMARY,
    "Time from arrival to answer in ms; since the start, interpolated in buckets.",
    "request",
)
LOCAL_TIME = _family(
    "kafka_network_requestmetrics_localtimems", SUMMARY, "The same of requests that were answered in the step of their arrival.", "request"
)
REMOTE_TIME = _family(
    "kafka_network_requestmetrics_remotetimems",
    SUMMARY,
    "The same of requests that waited: for replicas, disks, bytes, or members.",
    "request",
)
THROTTLE_TIME = _family(
    "kafka_network_requestmetrics_throttletimems",
    SUMMARY,
    "Time for which clients above a quota are muted after an answer, in ms; throttled requests only.",
    "request",
)
REQUEST_SECONDS = _family(
    "ottla_request_seconds",
    HISTOGRAM,
    "Time from arrival to answer; stage local: answered at once, remote: after a wait.",
    "request",
    "stage",
)

CONNECTIONS = _family(
    "kafka_server_socket_server_metrics_connection_count", GAUGE, "Open connections of a listener.", "listener", "networkProcessor"
)
CONNECTIONS_MADE = _family("kafka_server_socket_server_metrics_connection_creation_total", COUNTER, "Accepted connections.")
AUTHENTICATIONS = _family(
    "kafka_server_socket_server_metrics_successful_authentication_total", COUNTER, "Exchanges of SASL that succeeded."
)
FAILED_AUTHENTICATIONS = _family(
    "kafka_server_socket_server_metrics_failed_authentication_total", COUNTER, "Exchanges of SASL that failed."
)
RECEIVED = _family("kafka_server_socket_server_metrics_incoming_byte_total", COUNTER, "Bytes received by connections.")
SENT = _family("kafka_server_socket_server_metrics_outgoing_byte_total", COUNTER, "Bytes sent by connections that are closed.")
CUT = _family("ottla_connections_cut_total", COUNTER, "Connections that the broker closed, by reason.", "reason")
PROCESSOR_IDLE = _family(
    "kafka_network_socketserver_networkprocessoravgidle_percent", GAUGE, "Share of time in which the event loop's thread was idle, 0 to 1."
)
HANDLER_IDLE = _family(
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    GAUGE,
    "The same: one thread does the work of both of Kafka's pools.",
)

PURGATORY = _family(
    "kafka_server_delayedoperationpurgatory_purgatorysize", GAUGE, "Requests that wait; 'all' has all waits and timers.", "delayedOperation"
)
OFFLINE_DIRECTORIES = _family("kafka_log_logmanager_offlinelogdirectorycount", GAUGE, "Log directories that failed.")
DISK_FREE = _family("ottla_log_dir_free_bytes", GAUGE, "Free bytes on the disk of a log directory.", "directory")
DISK_TOTAL = _family("ottla_log_dir_total_bytes", GAUGE, "Size of the disk of a log directory.", "directory")
DISK_LOW = _family("ottla_log_dir_low", GAUGE, "1 if less than ottla.disk.reserve.bytes is free, so that produce is refused.", "directory")
FLUSH_TIME = _family("kafka_log_logflushstats_logflushrateandtimems", SUMMARY, "Time of the syncs of a flush batch in ms.")
SYNC_SECONDS = _family("ottla_fsync_seconds", HISTOGRAM, "Time of the syncs of a flush batch.")
COMMIT_SECONDS = _family("ottla_group_commit_seconds", HISTOGRAM, "Time of a flush batch, until the event loop handles its end.")
COMMITS = _family("ottla_group_commits_total", COUNTER, "Flush batches.")
FLUSHES = _family("ottla_partition_flushes_total", COUNTER, "Flushes of partitions, in batches.")

STORE_SECONDS = _family("ottla_store_write_seconds", HISTOGRAM, "Time of writes to the coordination store.")
STORE_CONNECTED = _family("ottla_store_session_connected", GAUGE, "1 if the session with the coordination store is connected.")
BROKER_STATE = _family("kafka_server_kafkaserver_brokerstate", GAUGE, "1: starting, 3: running, 6: in controlled shutdown, 7: stopping.")
DISK_READ = _family("kafka_server_kafkaserver_linux_disk_read_bytes", GAUGE, "Bytes that the process has read from disks.")
DISK_WRITE = _family("kafka_server_kafkaserver_linux_disk_write_bytes", GAUGE, "Bytes that the process has written to disks.")

LOOP_LAG = _family("ottla_loop_lag_seconds", HISTOGRAM, "Delay of the event loop's ticks, ten a second.")
LOOP_LAG_MAX = _family("ottla_loop_lag_max_seconds", GAUGE, "Longest delay of a tick since the start.")
LOOP_STALLS = _family("ottla_loop_stalls_total", COUNTER, "Stalls of the event loop above 0.25 s.", "kind")
FAILED_REQUESTS = _family("ottla_requests_failed_total", COUNTER, "Requests that failed with an unexpected exception.")
DENIED = _family("ottla_access_denied_total", COUNTER, "Accesses that access rules refused.")
THROTTLED = _family("ottla_quota_throttled_requests_total", COUNTER, "Answers of clients above a quota.")
THROTTLE_SECONDS = _family("ottla_quota_throttle_seconds_total", COUNTER, "Sum of the throttle times of these answers.")
QUOTA_RATE = _family(
    "ottla_quota_rate", GAUGE, "Present rate of a client with a quota, in the unit of the quota.", "quota", "user", "client_id"
)
CERTIFICATE_DAYS = _family("ottla_certificate_days_left", GAUGE, "Days until the first certificate of a listener expires.")
COMPACTIONS = _family("ottla_compactions_total", COUNTER, "Compacted logs.")
COMPACTION_BYTES = _family("ottla_compaction_bytes_total", COUNTER, "Bytes read and written by compactions.", "direction")
SCRUBBED = _family("ottla_scrubbed_bytes_total", COUNTER, "Bytes compared with their checksums.")
DAMAGES = _family("ottla_scrub_damages_total", COUNTER, "Damaged places that scrubs found.")

GROUPS = _gauges(
    "kafka_coordinator_group_groupmetadatamanager_",
    {"numgroups": "Groups coordinated here.", "numoffsets": "Committed offsets of groups coordinated here."},
)
GROUP_STATES = _family("ottla_groups", GAUGE, "Groups coordinated here, by kind and state.", "kind", "state")
GROUP_MEMBERS = _family("kafka_consumergroup_members", GAUGE, "Members of a group coordinated here.", "consumergroup")
GROUP = _gauges(
    "kafka_consumergroup_",
    {
        "current_offset": "Committed offset of a group coordinated here.",
        "lag": "Records between the committed offset and the high watermark.",
    },
    "consumergroup",
    "topic",
    "partition",
)
GROUP_LAG_SECONDS = _family(
    "ottla_consumergroup_lag_seconds",
    GAUGE,
    "Time since the high watermark passed the committed offset; at most the time of observation, 0 without lag.",
    "consumergroup",
    "topic",
    "partition",
)
TRANSACTIONS = _family("ottla_transactions", GAUGE, "Transactional ids coordinated here, by the state of their transaction.", "state")
SCHEMA_LOOKUPS = _family(
    "ottla_schema_lookups_total", COUNTER, "Schemas about which the schema registry was asked: registered, unknown, lost.", "result"
)
SCHEMA_REFUSED = _family("ottla_schema_refused_batches_total", COUNTER, "Batches that validation of schemas refused.")
SCHEMA_OUTAGE = _family("ottla_schema_registry_outage", GAUGE, "1 if the schema registry did not answer the last question.")
CLIENT_METRIC = _family(
    "ottla_client_metric",
    GAUGE,
    "Last value of a metric that a client pushed (KIP-714); labels attribute_* are the metric's own.",
    "metric", "client_instance_id", "client_id", "client_software_name",
)  # fmt: skip
CLIENT_PUSHES = _family(
    "ottla_client_metrics_pushes_total", COUNTER, "Pushes of clients' metrics; rejected: malformed, or too many.", "result"
)
LEFT_OUT = _family("ottla_metrics_left_out", GAUGE, "Topics, partitions and offsets above the limits of ottla.series.*.", "kind")
SCRAPE_SECONDS = _family("ottla_metrics_collection_seconds", GAUGE, "Time of the last collection, pauses included.")
INFO = _family("ottla_build_info", GAUGE, "1; the labels have the versions.", "version", "python")

MEMORY = _family("jvm_memory_used_bytes", GAUGE, "Resident memory of the process, under the name that dashboards for Kafka draw.", "area")
THREADS = _family("jvm_threads_current", GAUGE, "Threads of the process.")
GC_TIME = _family("jvm_gc_collection_seconds", SUMMARY, "Collections of Python's garbage collector, and their time.", "gc")

#: Metrics of the whole process, without the label ``broker``.
OF_PROCESS = frozenset(
    family.name
    for family in (
        CLIENT_METRIC, CLIENT_PUSHES, REQUESTS, CONNECTIONS_MADE, AUTHENTICATIONS, FAILED_AUTHENTICATIONS, RECEIVED,
        SENT, CUT, PROCESSOR_IDLE, HANDLER_IDLE, FLUSH_TIME, SYNC_SECONDS, COMMIT_SECONDS, COMMITS, FLUSHES,
        STORE_SECONDS, LOOP_LAG, LOOP_LAG_MAX, LOOP_STALLS, FAILED_REQUESTS, DENIED, THROTTLED, THROTTLE_SECONDS,
        CERTIFICATE_DAYS, COMPACTIONS, COMPACTION_BYTES, SCRUBBED, DAMAGES, INFO, DISK_READ, DISK_WRITE, MEMORY,
        THREADS, GC_TIME, SCRAPE_SECONDS,
    )
)  # fmt: skip
