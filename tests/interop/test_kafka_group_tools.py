"""Apache Kafka's consumer and tools on groups of both protocols: they read with them, describe them, and decode their records. And its tool
for feature levels.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_tools import Run

from serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(240), pytest.mark.usefixtures("own_server_only")]

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
DUMP = "org.apache.kafka.tools.DumpLogSegments"


def numbers(output: str) -> list[int]:
    """The records among what a consumer says of itself."""
    return [int(line) for line in output.splitlines() if line.isdigit()]


def test_kafka_reads_with_a_group_describes_it_and_decodes_its_records(tmp_path: Path, run: Run) -> None:
    with Serving(tmp_path / "data", settings={"offsets.topic.num.partitions": "1"}) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("t", 4, 1)])["t"].result(20)
        producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap})
        for number in range(40):
            producer.produce("t", b"%d" % number, partition=number % 4)
        producer.flush(20)
        at = ("--bootstrap-server", server.bootstrap)
        new = ("--command-property", "group.protocol=consumer", "--from-beginning", "--max-messages", "40", "--timeout-ms", "30000")
        assert sorted(numbers(run(CONSUMER, *at, "--topic", "t", "--group", "java", *new))) == list(range(40))

        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": server.bootstrap, "group.id": "g", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["^t.*"])
        deadline = time.monotonic() + 20
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.2)
        assert re.search(r"^g +Consumer +Stable", run(GROUPS, *at, "--list", "--state", "--type"), re.MULTILINE)
        members = run(GROUPS, *at, "--describe", "--group", "g", "--members", "--verbose")
        assert re.search(r"^g .* 4 +1 +t:0,1,2,3 +1 +t:0,1,2,3", members, re.MULTILINE), members
        state = run(GROUPS, *at, "--describe", "--group", "g", "--state", "--verbose")
        assert re.search(r"uniform +Stable +1 +1 +1$", state.strip(), re.MULTILINE), state
        consumer.close()
        [log] = (tmp_path / "data").rglob("__consumer_offsets-0/*.log")
        dumped = run(DUMP, "--offsets-decoder", "--files", str(log))
    types = set(re.findall(r'key: \{"type":"(\d+)"', dumped))
    assert types == {"1", "3", "4", "5", "6", "7", "8", "16"}
    assert '"classicMemberMetadata":null' in dumped and '"classicMemberMetadata":{' not in dumped
    assert '"subscribedTopicRegex":"(^t.*)"' in dumped
    assert re.search(r'"groupId":"g","regularExpression":"\(\^t\.\*\)"\}\} payload: <DELETE>', dumped)


def test_kafka_reads_with_a_classic_group_describes_it_resets_it_deletes_it_and_decodes_its_records(tmp_path: Path, run: Run) -> None:
    with Serving(tmp_path / "data", settings={"offsets.topic.num.partitions": "1"}) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result(20)
        producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap})
        for number in range(10):
            producer.produce("t", b"%d" % number, partition=number % 2)
        producer.flush(20)
        at = ("--bootstrap-server", server.bootstrap)
        old = ("--command-property", "group.protocol=classic", "--from-beginning", "--max-messages", "10", "--timeout-ms", "30000")
        assert sorted(numbers(run(CONSUMER, *at, "--topic", "t", "--group", "java", *old))) == list(range(10))

        consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g", "group.instance.id": "one"})
        consumer.subscribe(["t"])
        deadline = time.monotonic() + 20
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.2)
        listed = run(GROUPS, *at, "--list", "--state", "--type")
        assert re.search(r"^g +Classic +Stable", listed, re.MULTILINE) and re.search(r"^java +Classic +Empty", listed, re.MULTILINE), listed
        members = run(GROUPS, *at, "--describe", "--group", "g", "--members", "--verbose")
        assert re.search(r"^g +one-\S+ +one +/127.0.0.1 .* 2 .*t.*0,1", members, re.MULTILINE), members
        lag = run(GROUPS, *at, "--describe", "--group", "java")
        assert re.search(r"^java +t +0 +5 +5 +0 ", lag, re.MULTILINE), lag
        reset = run(GROUPS, *at, "--group", "java", "--topic", "t", "--reset-offsets", "--to-offset", "2", "--execute")
        assert re.search(r"^java +t +1 +2", reset, re.MULTILINE), reset
        assert "successful" in run(GROUPS, *at, "--group", "java", "--topic", "t:0", "--delete-offsets").lower()
        assert "successful" in run(GROUPS, *at, "--group", "java", "--delete").lower()
        consumer.close()
        [log] = (tmp_path / "data").rglob("__consumer_offsets-0/*.log")
        dumped = run(DUMP, "--offsets-decoder", "--files", str(log))
    assert set(re.findall(r'key: \{"type":"(\d+)"', dumped)) == {"1", "2"}
    assert re.search(r'"group":"g"\}\} payload: \{"version":"3","data":\{"protocolType":"consumer","generation":1,', dumped), dumped
    assert re.search(r'"group":"java"\}\} payload: <DELETE>', dumped), dumped


def test_kafkas_tool_shows_and_changes_feature_levels(tmp_path: Path, run: Run) -> None:
    with Serving(tmp_path / "data") as server:
        at = ("--bootstrap-server", server.bootstrap)
        lower = run(FEATURES, *at, "downgrade", "--feature", "metadata.version=32", "--feature", "group.version=0")
        assert "metadata.version was downgraded to 32." in lower and "group.version was downgraded to 0." in lower
        shown = run(FEATURES, *at, "describe")
        assert re.search(r"metadata.version.*FinalizedVersionLevel: 4\.4-IV1", shown), shown
        # It names features of quorums, share and streams groups, too. Kafka's answer is the same where a feature is unknown.
        refused = run(FEATURES, *at, "upgrade", "--release-version", "4.4", code=1)
        assert re.search(r"Could not upgrade .*no feature was updated, because of this one: .*this feature is unknown", refused), refused
        assert "FinalizedVersionLevel: 4.4-IV1" in run(FEATURES, *at, "describe")
