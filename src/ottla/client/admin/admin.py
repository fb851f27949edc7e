"""The admin client for asyncio: topics, partitions, records, settings, brokers, groups, transactions, access rules.

    async with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
        await admin.create_topic(NewTopic("orders", partitions=6))

Methods with a plural name return an `Outcome` for each item: its result, or its `KafkaError`, which is not raised. Methods with a singular
name, such as `create_topic`, raise it. Requests go to the controller, a partition's leader or the broker concerned. They are retried
while the error is retriable, until `timeout_ms` or `default_api_timeout_ms` is over.
"""

from __future__ import annotations

from random import Random
from types import TracebackType
from typing import Self, Unpack

from ottla.client.admin import acls, blocked, cluster, configs, groups, partitions, quotas, tokens, topics, transactions, users
from ottla.client.admin.calls import AdminCalls
from ottla.client.argument_validation import checked
from ottla.client.options import AdminOptions
from ottla.client.profiles import client_options
from ottla.client.sampled_stats import Figures
from ottla.client.settings import AdminSettings


@checked()
class Admin:
    """Administers a cluster. Settings are those of `AdminOptions`, as keyword arguments; belongs to the loop in which it is first used.

    The methods are functions of the modules by subject.

    Raises: ConfigError for a setting that is unknown or invalid.
    """

    def __init__(self, *, rng: Random | None = None, **settings: Unpack[AdminSettings]) -> None:
        self.options = client_options(AdminOptions, settings)
        self._calls = AdminCalls(self.options, rng or Random())

    async def __aenter__(self) -> Self:
        _ = self._calls.network
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Closing twice is no error. Example: `admin.close()`."""
        await self._calls.close()

    def metrics(self) -> dict[str, Figures]:
        """`admin-client-metrics` by name: number of connections, and the throttle times of responses in ms (KIP-219, KIP-599).

        Averages and maxima cover the last minute; NaN without responses.

        Example: `admin.metrics()`.
        """
        return {"admin-client-metrics": self._calls.figures()}

    create_topics = topics.create_topics
    create_topic = topics.create_topic
    delete_topics = topics.delete_topics
    delete_topic = topics.delete_topic
    create_partitions = topics.create_partitions
    list_topics = topics.list_topics
    describe_topics = topics.describe_topics
    describe_topic = topics.describe_topic

    delete_records = partitions.delete_records
    list_offsets = partitions.list_offsets
    describe_producers = partitions.describe_producers
    alter_partition_reassignments = partitions.alter_partition_reassignments
    list_partition_reassignments = partitions.list_partition_reassignments
    elect_leaders = partitions.elect_leaders

    describe_configs = configs.describe_configs
    describe_config = configs.describe_config
    incremental_alter_configs = configs.incremental_alter_configs
    incremental_alter_config = configs.incremental_alter_config
    alter_configs = configs.alter_configs
    list_config_resources = configs.list_config_resources

    describe_client_quotas = quotas.describe_client_quotas
    alter_client_quotas = quotas.alter_client_quotas

    describe_cluster = cluster.describe_cluster
    describe_features = cluster.describe_features
    update_features = cluster.update_features
    describe_api_versions = cluster.describe_api_versions
    describe_quorum = cluster.describe_quorum
    unregister_broker = cluster.unregister_broker
    describe_log_dirs = cluster.describe_log_dirs
    describe_replica_log_dirs = cluster.describe_replica_log_dirs
    alter_replica_log_dirs = cluster.alter_replica_log_dirs

    describe_scram_credentials = users.describe_scram_credentials
    set_scram_credential = users.set_scram_credential
    delete_scram_credential = users.delete_scram_credential

    create_delegation_token = tokens.create_delegation_token
    describe_delegation_tokens = tokens.describe_delegation_tokens
    renew_delegation_token = tokens.renew_delegation_token
    expire_delegation_token = tokens.expire_delegation_token

    list_groups = groups.list_groups
    describe_consumer_groups = groups.describe_consumer_groups
    describe_consumer_group = groups.describe_consumer_group
    delete_consumer_groups = groups.delete_consumer_groups
    delete_consumer_group = groups.delete_consumer_group
    list_consumer_group_offsets = groups.list_consumer_group_offsets
    alter_consumer_group_offsets = groups.alter_consumer_group_offsets
    delete_consumer_group_offsets = groups.delete_consumer_group_offsets
    remove_members_from_consumer_group = groups.remove_members_from_consumer_group
    consumer_group_lag = groups.consumer_group_lag

    list_transactions = transactions.list_transactions
    describe_transactions = transactions.describe_transactions
    describe_transaction = transactions.describe_transaction
    fence_producers = transactions.fence_producers
    force_terminate_transaction = transactions.force_terminate_transaction
    abort_transaction = transactions.abort_transaction
    open_transactions = transactions.open_transactions
    find_hanging_transactions = transactions.find_hanging_transactions
    find_blocked_partitions = blocked.find_blocked_partitions

    describe_acls = acls.describe_acls
    create_acls = acls.create_acls
    delete_acls = acls.delete_acls
    describe_denied_accesses = acls.describe_denied_accesses
