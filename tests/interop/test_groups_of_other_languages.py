"""Consumers in other languages in groups with Ottla's: Java, Go (franz-go, Sarama, kafka-go) and JavaScript (KafkaJS)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from builds import FRANZ_GO, go_built, java_built, node_built
from group_members import SESSION, GroupUnderTest, Load
from test_mixed_groups import NEW_PROTOCOL, NEW_SETTINGS, PARTITIONS, made

from serving import Serving

pytestmark = [
    pytest.mark.interop,
    pytest.mark.server,
    pytest.mark.timeout(420),
    pytest.mark.xdist_group("other_languages"),
    pytest.mark.usefixtures("own_server_only"),
]

SARAMA, KAFKA_GO = "v1.61.1", "v0.4.51"


def java() -> Sequence[str | Path]:
    runtime, classpath = java_built("JavaMember")
    return [runtime.path, "-Xmx128M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath, "JavaMember"]


def franz_go() -> Sequence[str | Path]:
    return [go_built("franz_member.go", f"github.com/twmb/franz-go/pkg/kgo@{FRANZ_GO}")]


def sarama() -> Sequence[str | Path]:
    return [go_built("sarama_member.go", f"github.com/IBM/sarama@{SARAMA}")]


def kafka_go() -> Sequence[str | Path]:
    return [go_built("kafkago_member.go", f"github.com/segmentio/kafka-go@{KAFKA_GO}")]


def kafkajs() -> Sequence[str | Path]:
    return ["node", node_built("member.mjs")]


#: kafka-go declares version 1 of its subscription, omits the fields that version 1 adds, and rejects other members' subscriptions: it
#: cannot share a group with a client that follows the format.
ALONE = (kafka_go,)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("languages") / "data", settings=NEW_SETTINGS) as serving:
        yield serving


@pytest.mark.parametrize(
    ("program", "protocol"),
    [
        (java, "classic"),
        (java, "consumer"),
        (franz_go, "classic"),
        (sarama, "classic"),
        pytest.param(kafka_go, "classic", marks=pytest.mark.long),
        (kafkajs, "classic"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_group_with_members_of_another_language_shares_a_topic_and_survives_their_failures(
    server: Serving, tmp_path: Path, program: Callable[[], Sequence[str | Path]], protocol: str
) -> None:
    command = program()
    topic = made(server.bootstrap)
    with (
        Load(server.bootstrap, topic, PARTITIONS) as load,
        GroupUnderTest(server.bootstrap, topic, tmp_path, partitions=PARTITIONS) as group,
    ):
        new = protocol == "consumer"
        settings = {"group.protocol": "consumer"} if new else SESSION
        killed, leaver = (group.start_program(command, program.__name__, settings) for _ in range(2))
        if program in ALONE:
            stays = group.start_program(command, program.__name__, settings)
        else:
            stays = group.start("ottla", **(NEW_PROTOCOL if new else {}))
        group.until_shared_by([killed, leaver, stays])
        killed.kill()
        group.until_shared_by([leaver, stays])
        leaver.leave()
        assert group.until_shared_by([stays]) < 10, "no member waits for one that has left"
        group.finish(load.stop())
