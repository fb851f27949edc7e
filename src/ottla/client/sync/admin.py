"""The blocking admin client: each method of `ottla.client.admin.admin.Admin` runs on a loop in a thread, and the caller waits."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from random import Random
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from ottla.client.admin import admin as aio
from ottla.client.argument_validation import patience
from ottla.client.errors import AlreadyClosed
from ottla.client.sampled_stats import Figures
from ottla.client.settings import AdminSettings
from ottla.client.sync.loop_thread import LoopThread, close_at_exit

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[aio.Admin, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Admin, P], T]:
    """The method of the blocking client, with the parameters and the docstring of the asyncio client's method."""

    @wraps(method)
    def call(self: Admin, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._call(lambda: method(self._aio, *arguments, **named))

    return call


class Admin:
    """Administers a cluster. Settings are keyword arguments of `AdminOptions`.

    Methods in the plural return for each item its result or its `KafkaError`. Methods in the singular raise it.

    Raises: ConfigError for an unknown or contradictory setting.
    """

    def __init__(self, *, rng: Random | None = None, **settings: Unpack[AdminSettings]) -> None:
        self._aio = aio.Admin(rng=rng, **settings)
        self.options = self._aio.options
        self._closed = False
        self._thread = LoopThread("ottla-admin")
        close_at_exit(self)

    def __enter__(self) -> Self:
        self._raise_if_closed()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self, timeout_ms: float | None = None) -> None:
        """Closes the connections. Does not wait: `timeout_ms` exists as in the other clients. Closing twice is allowed.

        Example: `admin.close()`.
        """
        patience(timeout_ms)
        if not self._closed:
            self._closed = True
            try:
                self._thread.call(self._aio.close())
            finally:
                self._thread.stop()

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._raise_if_closed()
        return self._thread.call(work())

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise AlreadyClosed("the admin client is closed; make another one")

    def metrics(self) -> dict[str, Figures]:
        """`admin-client-metrics` by name: number of connections, and the throttle times of responses in ms (KIP-219, KIP-599).

        Averages and maxima cover the last minute; NaN without responses.

        Example: `admin.metrics()`.
        """
        return self._aio.metrics()

    create_topics = _blocking(aio.Admin.create_topics)
    create_topic = _blocking(aio.Admin.create_topic)
    delete_topics = _blocking(aio.Admin.delete_topics)
    delete_topic = _blocking(aio.Admin.delete_topic)
    create_partitions = _blocking(aio.Admin.create_partitions)
    list_topics = _blocking(aio.Admin.list_topics)
    describe_topics = _blocking(aio.Admin.describe_topics)
    describe_topic = _blocking(aio.Admin.describe_topic)

    delete_records = _blocking(aio.Admin.delete_records)
    list_offsets = _blocking(aio.Admin.list_offsets)
    describe_producers = _blocking(aio.Admin.describe_producers)
    alter_partition_reassignments = _blocking(aio.Admin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(aio.Admin.list_partition_reassignments)
    elect_leaders = _blocking(aio.Admin.elect_leaders)

    describe_configs = _blocking(aio.Admin.describe_configs)
    describe_config = _blocking(aio.Admin.describe_config)
    incremental_alter_configs = _blocking(aio.Admin.incremental_alter_configs)
    incremental_alter_config = _blocking(aio.Admin.incremental_alter_config)
    alter_configs = _blocking(aio.Admin.alter_configs)
    list_config_resources = _blocking(aio.Admin.list_config_resources)

    describe_client_quotas = _blocking(aio.Admin.describe_client_quotas)
    alter_client_quotas = _blocking(aio.Admin.alter_client_quotas)

    describe_cluster = _blocking(aio.Admin.describe_cluster)
    describe_features = _blocking(aio.Admin.describe_features)
    update_features = _blocking(aio.Admin.update_features)
    describe_api_versions = _blocking(aio.Admin.describe_api_versions)
    describe_quorum = _blocking(aio.Admin.describe_quorum)
    unregister_broker = _blocking(aio.Admin.unregister_broker)
    describe_log_dirs = _blocking(aio.Admin.describe_log_dirs)
    describe_replica_log_dirs = _blocking(aio.Admin.describe_replica_log_dirs)
    alter_replica_log_dirs = _blocking(aio.Admin.alter_replica_log_dirs)

    describe_scram_credentials = _blocking(aio.Admin.describe_scram_credentials)
    set_scram_credential = _blocking(aio.Admin.set_scram_credential)
    delete_scram_credential = _blocking(aio.Admin.delete_scram_credential)

    create_delegation_token = _blocking(aio.Admin.create_delegation_token)
    describe_delegation_tokens = _blocking(aio.Admin.describe_delegation_tokens)
    renew_delegation_token = _blocking(aio.Admin.renew_delegation_token)
    expire_delegation_token = _blocking(aio.Admin.expire_delegation_token)

    list_groups = _blocking(aio.Admin.list_groups)
    describe_consumer_groups = _blocking(aio.Admin.describe_consumer_groups)
    describe_consumer_group = _blocking(aio.Admin.describe_consumer_group)
    delete_consumer_groups = _blocking(aio.Admin.delete_consumer_groups)
    delete_consumer_group = _blocking(aio.Admin.delete_consumer_group)
    list_consumer_group_offsets = _blocking(aio.Admin.list_consumer_group_offsets)
    alter_consumer_group_offsets = _blocking(aio.Admin.alter_consumer_group_offsets)
    delete_consumer_group_offsets = _blocking(aio.Admin.delete_consumer_group_offsets)
    remove_members_from_consumer_group = _blocking(aio.Admin.remove_members_from_consumer_group)
    consumer_group_lag = _blocking(aio.Admin.consumer_group_lag)

    list_transactions = _blocking(aio.Admin.list_transactions)
    describe_transactions = _blocking(aio.Admin.describe_transactions)
    describe_transaction = _blocking(aio.Admin.describe_transaction)
    fence_producers = _blocking(aio.Admin.fence_producers)
    force_terminate_transaction = _blocking(aio.Admin.force_terminate_transaction)
    abort_transaction = _blocking(aio.Admin.abort_transaction)
    open_transactions = _blocking(aio.Admin.open_transactions)
    find_hanging_transactions = _blocking(aio.Admin.find_hanging_transactions)
    find_blocked_partitions = _blocking(aio.Admin.find_blocked_partitions)

    describe_acls = _blocking(aio.Admin.describe_acls)
    create_acls = _blocking(aio.Admin.create_acls)
    delete_acls = _blocking(aio.Admin.delete_acls)
    describe_denied_accesses = _blocking(aio.Admin.describe_denied_accesses)
