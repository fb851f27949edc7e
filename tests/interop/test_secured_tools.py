"""Apache Kafka's command-line tools with `--command-config` on a listener with TLS, SASL and access rules: each of them once, as an
administrator, and one that its user has no right for.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka_tools import Run

from certificates import Certificate
from serving import Serving

pytestmark = [
    pytest.mark.interop,
    pytest.mark.server,
    pytest.mark.timeout(240),
    # The cluster and the JVM of the module are shared.
    pytest.mark.xdist_group("secured_tools"),
    pytest.mark.usefixtures("own_server_only"),
]

TOOLS = "org.apache.kafka.tools"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = 'user_admin="admin-secret" user_alice="alice-secret"'


@dataclass(frozen=True, slots=True)
class Secured:
    """Two brokers, and the files of their users."""

    bootstrap: str
    directory: Path
    run: Run

    def tool(self, name: str, *arguments: str, user: str = "admin", code: int | None = 0, text: str = "") -> str:
        """Runs a tool as a user; its output."""
        to = ("--bootstrap-server", self.bootstrap, "--command-config", str(self.directory / f"{user}.properties"))
        return self.run(f"{TOOLS}.{name}", *to, *arguments, code=code, text=text)

    def file(self, name: str, content: object) -> str:
        path = self.directory / name
        path.write_text(json.dumps(content))
        return str(path)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tools")
    authority = Certificate.authority()
    authority.write_trusted(directory / "ca.pem")
    authority.issue("broker").write_pem(directory / "broker.pem")
    (directory / "server.properties").write_text(f"""
listeners=SASL_SSL://127.0.0.1:0
security.inter.broker.protocol=SASL_SSL
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config={MODULE} required username="admin" password="admin-secret" {USERS};
ssl.keystore.type=PEM
ssl.keystore.location={directory / "broker.pem"}
ssl.truststore.type=PEM
ssl.truststore.location={directory / "ca.pem"}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin
delegation.token.secret.key=key
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
""")
    for user in ("admin", "alice"):
        (directory / f"{user}.properties").write_text(f"""
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config={MODULE} required username="{user}" password="{user}-secret";
ssl.truststore.type=PEM
ssl.truststore.location={directory / "ca.pem"}
""")
    arguments = ["--config", str(directory / "server.properties")]
    with Serving(directory / "data", brokers=2, arguments=arguments, listen=False) as server:
        made = Secured(server.bootstrap, directory, run)
        made.tool("TopicCommand", "--create", "--topic", "orders", "--partitions", "2", "--replication-factor", "2")
        # Without --sync it writes the last records when its JVM ends. --timeout is the linger: 1 s for each record by default.
        made.tool(
            "ConsoleProducer", "--sync", "--timeout", "0", "--topic", "orders", text="".join(f"order {number}\n" for number in range(100))
        )
        yield made


def until(true: Callable[[], bool]) -> None:
    """Waits for a change to reach all brokers."""
    deadline_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline_s, "it becomes true"


def test_topics(secured: Secured) -> None:
    assert "orders" in secured.tool("TopicCommand", "--list")
    assert "PartitionCount: 2" in secured.tool("TopicCommand", "--describe", "--topic", "orders")
    secured.tool("TopicCommand", "--create", "--topic", "short", "--partitions", "1")
    secured.tool("TopicCommand", "--alter", "--topic", "short", "--partitions", "2")
    secured.tool("TopicCommand", "--delete", "--topic", "short")
    assert "short" not in secured.tool("TopicCommand", "--list")


def test_configs(secured: Secured) -> None:
    topic = ("--entity-type", "topics", "--entity-name", "orders")
    secured.tool("ConfigCommand", "--alter", *topic, "--add-config", "retention.ms=3600000")
    assert "retention.ms=3600000" in secured.tool("ConfigCommand", "--describe", *topic)
    user = ("--entity-type", "users", "--entity-name", "carol")
    secured.tool("ConfigCommand", "--alter", *user, "--add-config", "SCRAM-SHA-512=[password=carol-secret]")
    assert "SCRAM-SHA-512=iterations=4096" in secured.tool("ConfigCommand", "--describe", *user)


def test_acls(secured: Secured) -> None:
    rule = ("--allow-principal", "User:carol", "--operation", "Read", "--topic", "acls-")
    secured.tool("AclCommand", "--add", *rule, "--resource-pattern-type", "prefixed")
    assert "principal=User:carol" in secured.tool("AclCommand", "--list", "--principal", "User:carol")
    secured.tool("AclCommand", "--remove", "--force", *rule, "--resource-pattern-type", "prefixed")
    assert "ResourcePattern" not in secured.tool("AclCommand", "--list", "--principal", "User:carol")


def test_console_consumer_and_consumer_groups(secured: Secured) -> None:
    read = ("--topic", "orders", "--group", "billing", "--from-beginning", "--max-messages", "100", "--timeout-ms", "30000")
    lines = secured.tool("consumer.ConsoleConsumer", *read).splitlines()
    assert sorted(line for line in lines if line.startswith("order ")) == sorted(f"order {number}" for number in range(100))
    groups: Callable[..., str] = lambda *arguments: secured.tool("consumer.group.ConsumerGroupCommand", *arguments)  # noqa: E731
    assert "billing" in groups("--list")
    # The producer may have written all of them to one partition; the other then has no offset if it was not asked about in time.
    read_up_to = re.findall(r"^billing +orders +[01] +(\d+) ", groups("--describe", "--group", "billing"), re.MULTILINE)
    assert sum(map(int, read_up_to)) == 100
    assert "NEW-OFFSET" in groups("--reset-offsets", "--group", "billing", "--topic", "orders", "--to-earliest", "--execute")
    assert "was successful" in groups("--delete", "--group", "billing")


def test_transactions(secured: Secured) -> None:
    secured.tool("TopicCommand", "--create", "--topic", "paid", "--partitions", "1")
    load = ("--topic", "paid", "--num-records", "10", "--record-size", "10", "--throughput", "-1")
    secured.tool("ProducerPerformance", *load, "--transactional-id", "payments", "--transaction-duration-ms", "100")
    assert "payments" in secured.tool("TransactionsCommand", "list")
    assert "CompleteCommit" in secured.tool("TransactionsCommand", "describe", "--transactional-id", "payments")
    secured.tool("TransactionsCommand", "describe-producers", "--topic", "paid", "--partition", "0")


def test_delegation_tokens(secured: Secured) -> None:
    made = secured.tool("DelegationTokenCommand", "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:alice")
    found = re.search(r"^(\S+)\s+(\S+==)\s+User:admin", made, re.MULTILINE)
    assert found is not None, made
    token_id, hmac = found.groups()
    mine = ("--owner-principal", "User:admin")
    # A broker has a new token when the store has delivered it.
    until(lambda: token_id in secured.tool("DelegationTokenCommand", "--describe", *mine))
    secured.tool("DelegationTokenCommand", "--renew", "--renew-time-period", "-1", "--hmac", hmac, user="alice")
    secured.tool("DelegationTokenCommand", "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    until(lambda: token_id not in secured.tool("DelegationTokenCommand", "--describe", *mine))


def test_log_dirs_offsets_versions_and_features(secured: Secured) -> None:
    assert '"partition":"orders-0"' in secured.tool("LogDirsCommand", "--describe", "--topic-list", "orders")
    ends = re.findall(r"^orders:\d:(\d+)$", secured.tool("GetOffsetShell", "--topic", "orders"), re.MULTILINE)
    assert sum(map(int, ends)) >= 100
    versions = secured.tool("BrokerApiVersionsCommand")
    assert len(re.findall(r"\(id: \d rack: ", versions)) == 2 and "SaslAuthenticate(36)" in versions
    assert "transaction.version" in secured.tool("FeatureCommand", "describe")


def test_performance(secured: Secured) -> None:
    load = ("--topic", "orders", "--num-records", "200", "--record-size", "10", "--throughput", "-1")
    assert "200 records sent" in secured.tool("ProducerPerformance", *load)


def test_reassignments_elections_and_deleted_records(secured: Secured) -> None:
    secured.tool("TopicCommand", "--create", "--topic", "moved", "--replica-assignment", "1")
    secured.tool("ConsoleProducer", "--sync", "--topic", "moved", text="one\ntwo\nthree\n")
    cut = secured.file("offsets.json", {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "offset": 2}]})
    assert re.search(r"moved-0\s+low_watermark: 2", secured.tool("DeleteRecordsCommand", "--offset-json-file", cut))
    plan = secured.file("plan.json", {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [2, 1]}]})
    assert "Successfully started" in secured.tool("reassign.ReassignPartitionsCommand", "--reassignment-json-file", plan, "--execute")
    verify = ("--reassignment-json-file", plan, "--verify")
    until(lambda: "is completed" in secured.tool("reassign.ReassignPartitionsCommand", *verify))
    elected = secured.tool("LeaderElectionCommand", "--election-type", "preferred", "--topic", "moved", "--partition", "0")
    assert "moved-0" in elected
    assert "Leader: 2" in secured.tool("TopicCommand", "--describe", "--topic", "moved")


def test_a_tool_reports_what_its_user_has_no_right_on(secured: Secured) -> None:
    denied = secured.tool("TopicCommand", "--create", "--topic", "mine", "--partitions", "1", user="alice", code=1)
    assert "User:alice may not Create Topic mine" in denied
    assert "orders" not in secured.tool("TopicCommand", "--list", user="alice")
