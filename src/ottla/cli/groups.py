"""The groups `ottla topic`, `group`, `transaction`, `acl`, `quota`, `cluster`, `pipeline`, `perf`, `registry`: tables of commands."""

from ottla.cli.common.lazy import CommandEntry, LazyGroup

topic = LazyGroup(
    name="topic",
    help="Create, list, describe, alter and delete topics.",
    table={
        "list": CommandEntry("topic.list:list_", "List topics with their partition counts and replication factors."),
        "describe": CommandEntry("topic.list:describe", "Show partitions, leaders, replicas, offsets and settings."),
        "create": CommandEntry("topic.change:create", "Create topics."),
        "alter": CommandEntry("topic.change:alter", "Add partitions, or change settings."),
        "delete": CommandEntry("topic.delete:delete", "Delete topics with all their records."),
        "partitions": CommandEntry("topic.partitions:partitions", "List partitions, all or only unhealthy ones."),
        "offsets": CommandEntry("topic.partitions:offsets", "Show log start and end offsets, or the offset at a time."),
        "producers": CommandEntry("topic.partitions:producers", "Show the idempotent and transactional producers of partitions."),
        "records-delete": CommandEntry("topic.delete:records_delete", "Delete the oldest records of partitions."),
    },
)
group = LazyGroup(
    name="group",
    help="List, describe and delete consumer groups; show lag, reset offsets.",
    table={
        "list": CommandEntry("group.list:list_", "List groups with their states and types."),
        "describe": CommandEntry("group.list:describe", "Show state, coordinator, assignor, members and assignments."),
        "lag": CommandEntry("group.lag:lag", "Show the lag of groups, once or continuously."),
        "reset": CommandEntry("group.reset:reset", "Reset the offsets of a group without members."),
        "delete": CommandEntry("group.delete:delete", "Delete groups without members, with all their offsets."),
        "delete-offsets": CommandEntry("group.delete:delete_offsets", "Delete committed offsets of a group."),
        "remove-members": CommandEntry("group.delete:remove_members", "Remove members, such as static ones, from a group."),
    },
)
transaction = LazyGroup(
    name="transaction",
    help="List, describe and abort transactions; find those that block readers.",
    table={
        "list": CommandEntry("transaction.list:list_", "List transactional ids with their states and producer ids."),
        "describe": CommandEntry("transaction.list:describe", "Show state, producer, client, timeout and partitions."),
        "blocking": CommandEntry("transaction.blocking:blocking", "Show what holds back last stable offsets, and who waits."),
        "find-hanging": CommandEntry("transaction.blocking:find_hanging", "Find open transactions that no coordinator will end."),
        "abort": CommandEntry("transaction.abort:abort", "Abort transactions by id, or end those that hang."),
    },
)
acl = LazyGroup(
    name="acl",
    help="List, add, remove and test access rules (ACLs).",
    table={
        "list": CommandEntry("acl.list:list_", "List access rules, all or those that apply to a resource."),
        "add": CommandEntry("acl.change:add", "Add rules: principals may carry out operations on a resource."),
        "remove": CommandEntry("acl.change:remove", "Remove the rules that match all options."),
        "test": CommandEntry("acl.test:test", "Show what a principal may do on a resource, and by which rule."),
    },
)

quota = LazyGroup(
    name="quota",
    help="List, set and remove quotas of users, client ids and addresses.",
    table={
        "list": CommandEntry("quota.commands:list_", "List quotas, all or those of an entity."),
        "set": CommandEntry("quota.commands:set_", "Set quotas of a user, a client id, both, or an address."),
        "remove": CommandEntry("quota.commands:remove", "Remove quotas, so that a less specific one applies."),
    },
)
cluster = LazyGroup(
    name="cluster",
    help="Start, stop and describe clusters; reassign replicas and elect leaders.",
    table={
        "up": CommandEntry("cluster.local:up", "Start a cluster on this machine, with a process per broker."),
        "status": CommandEntry("cluster.status", "Show processes, controller and unhealthy partitions."),
        "health": CommandEntry("cluster.health_command", "Say whether a cluster is healthy, once or until it is."),
        "describe": CommandEntry("cluster.describe:describe", "Show id, controller, brokers and totals."),
        "apis": CommandEntry("cluster.describe:apis", "List the APIs of a broker and their versions."),
        "features": CommandEntry("cluster.describe:features", "Show feature levels."),
        "features-update": CommandEntry("cluster.features", "Raise or lower feature levels."),
        "quorum": CommandEntry("cluster.describe:quorum", "Show the metadata quorum of a KRaft cluster."),
        "restart": CommandEntry("cluster.local:restart", "Restart brokers of this machine one by one, without downtime."),
        "down": CommandEntry("cluster.local:down", "Stop a cluster on this machine."),
        "reassign": CommandEntry("cluster.reassign", "Move replicas between brokers."),
        "elect": CommandEntry("cluster.elect", "Elect preferred replicas as leaders."),
    },
)
pipeline = LazyGroup(
    name="pipeline",
    help="Run data pipelines on Spark: from topics through SQL into tables and topics.",
    table={
        "run": CommandEntry("pipeline.commands:run", "Run a pipeline file until Ctrl-C; a restart continues where it stopped."),
        "validate": CommandEntry("pipeline.plan:validate", "Check a pipeline file without running it."),
        "plan": CommandEntry("pipeline.plan:plan", "Show the views, columns, state and sinks of a pipeline file."),
        "diff": CommandEntry("pipeline.diff:diff", "Show what a restart with a changed pipeline file would do."),
        "test": CommandEntry("pipeline.cases:test", "Run the tests of a pipeline file: records in, rows expected."),
        "status": CommandEntry("pipeline.commands:status", "Show batches, offsets, lag and dead letters of a pipeline."),
        "reset": CommandEntry("pipeline.commands:reset", "Delete the checkpoint of a pipeline, so that it starts over."),
        "backfill": CommandEntry("pipeline.backfill:backfill", "Compute a time range again and replace its rows in Delta tables."),
        "load": CommandEntry("pipeline.load:load", "Load files into a topic: csv, JSON lines, Parquet, Arrow, text."),
        "export": CommandEntry("pipeline.commands:export", "Export a topic to Delta or Parquet; a rerun adds new records."),
    },
)
perf = LazyGroup(
    name="perf",
    help="Measure throughput and latency of a cluster, Ottla or Kafka.",
    table={
        "produce": CommandEntry("perf.produce", "Send random records and report throughput and latency."),
        "consume": CommandEntry("perf.consume", "Read records and report throughput."),
        "latency": CommandEntry("perf.latency", "Measure the latency from a producer to a consumer."),
    },
)
registry = LazyGroup(
    name="registry",
    help="Serve a schema registry; list, register, check and delete schemas.",
    table={
        "serve": CommandEntry("registry.serve", "Run a schema registry until Ctrl-C."),
        "list": CommandEntry("registry.schemas:list_", "List subjects with their versions."),
        "show": CommandEntry("registry.schemas:show", "Show a schema, by subject or id."),
        "register": CommandEntry("registry.schemas:register", "Register a schema as the next version of a subject."),
        "check": CommandEntry("registry.schemas:check", "Check whether a schema may follow a subject's versions."),
        "delete": CommandEntry("registry.schemas:delete", "Delete a subject or a version."),
        "config": CommandEntry("registry.settings:config", "Show or set the compatibility level."),
        "mode": CommandEntry("registry.settings:mode", "Show or set the mode."),
    },
)
