"""A broker in a test with TLS, users and access rules, and the settings that it gives to clients."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

import ottla
from ottla.base.jaas import login_module
from ottla.errors import SaslAuthenticationFailed, TopicAuthorizationFailed
from ottla.results import Acl, AclOperation, AclResourceType
from ottla.testing import Broker, BrokerFailed, broker
from ottla.testing.plugin import Topics
from ottla.testing.topic import Topic

pytestmark = pytest.mark.server

USERS = {"alice": "wonder, =land", "bob": "build"}


def may_write(principal: str, topic: str) -> Acl:
    return Acl(principal=principal, operation=AclOperation.WRITE, resource_type=AclResourceType.TOPIC, name=topic)


def write(topic: str, **settings: Any) -> None:
    with ottla.Producer(**settings) as producer:
        producer.send(topic, b"x").result(20)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_over_tls_do_what_the_rules_allow_them(mechanism: str) -> None:
    with broker(tls=True, users=USERS, acls=[may_write("User:alice", "orders")]) as started:
        orders = started.topic("orders")
        write("orders", **started.client_settings("alice", mechanism))
        with pytest.raises(TopicAuthorizationFailed):
            write("orders", **started.client_settings("bob", mechanism))
        with pytest.raises(SaslAuthenticationFailed):
            write("orders", **{**started.client_settings("alice", mechanism), "sasl_password": "wrong"})
        started.kill()
        started.restart()
        write("orders", **started.client_settings("alice", mechanism))
        assert orders.values() == [b"x", b"x"]


def test_without_users_the_name_of_a_client_is_in_its_certificate() -> None:
    with broker(tls=True, acls=[may_write("User:CN=alice", "orders")]) as started:
        started.topic("orders")
        write("orders", **started.client_settings("alice"))
        with pytest.raises(TopicAuthorizationFailed):
            write("orders", **started.client_settings("bob"))
        anonymous = {name: value for name, value in started.client_settings().items() if "keystore" not in name}
        with pytest.raises(TopicAuthorizationFailed):
            write("orders", **anonymous)


def test_the_settings_of_the_test_come_first_and_the_helpers_keep_their_rights() -> None:
    settings = {"ssl.client.auth": "required", "super.users": "User:CN=root"}
    with broker(tls=True, settings=settings, acls=[]) as started:
        started.topic("orders").send(b"1")
        write("orders", **started.client_settings("root"))
        with pytest.raises(TopicAuthorizationFailed):
            write("orders", **started.client_settings("alice"))


def test_other_clients_connect_with_the_settings_in_their_names() -> None:
    with broker(tls=True, users=USERS) as started:
        named = started.librdkafka_settings("alice", "SCRAM-SHA-512")
        assert AdminClient(named).list_topics(timeout=20).cluster_id
        java = started.java_settings("alice", "SCRAM-SHA-512")
    assert java["security.protocol"] == "SASL_SSL"
    assert login_module(java["sasl.jaas.config"], "SCRAM-SHA-512").options == {"username": "alice", "password": "wonder, =land"}
    assert java["ssl.truststore.location"] == str(started.ca_file)
    with broker(tls=True, settings={"ssl.client.auth": "required"}) as started:
        producer = confluent_kafka.Producer(started.librdkafka_settings("alice"))
        producer.produce("t", b"x")
        assert producer.flush(20) == 0


def test_a_broker_that_does_not_know_its_clients_refuses_users_and_rules_by_name() -> None:
    with broker() as started:
        assert started.client_settings() == {"bootstrap_servers": started.bootstrap_servers}
        with pytest.raises(KeyError, match="the broker has no users"):
            started.client_settings("alice")
        with pytest.raises(BrokerFailed, match="tls=True"):
            _ = started.ca_file
    with pytest.raises(ValueError, match="access rules need clients with names"):
        broker(acls=[])
    with broker(users=USERS) as started, pytest.raises(KeyError, match="no user 'carol'"):
        started.client_settings("carol")


@pytest.mark.ottla(tls=True, users=USERS, acls=[may_write("User:alice", "orders")])
def test_the_fixtures_use_the_tests_own_broker_and_its_first_user(
    ottla_own_broker: Broker, ottla_topics: Topics, ottla_producer: Any
) -> None:
    orders, others = ottla_topics("orders"), ottla_topics("others")
    ottla_producer.send("orders", b"x").result(20)
    assert orders.values() == [b"x"]
    with pytest.raises(TopicAuthorizationFailed):
        ottla_producer.send("others", b"x").result(20)
    assert isinstance(others, Topic)
