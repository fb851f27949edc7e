"""``server.properties`` files and Kafka's setting names."""

from pathlib import Path

import pytest

from ottla.base.options import ConfigError
from ottla.broker.metadata.configs import SPECS_BY_NAME, Settings
from ottla.broker.metadata.kafka_settings import MEANINGLESS, OTHER_DEFAULTS, REFUSED, Treatment, kafka_settings, treatment
from ottla.server.addresses import address_text, parse_address
from ottla.server.process_plan import ProcessPlan
from ottla.server.server_properties import AcceptedSettings, accepted_settings, parse_properties, settings_of_environment

pytestmark = pytest.mark.server


def test_a_properties_file_is_read_as_java_reads_it() -> None:
    text = """
# a comment
! another
a=1
  b : two words \n\
c three
d=first,\\
    second
e\\ f=g\\=h\\\\i
u=\\u00e4\\tx
empty=
alone
a=last
"""
    assert parse_properties(text) == {
        "a": "last", "b": "two words ", "c": "three", "d": "first,second", "e f": "g=h\\i", "u": "ä\tx", "empty": "", "alone": "",
    }  # fmt: skip


def test_a_malformed_escape_is_refused_with_its_text() -> None:
    with pytest.raises(ConfigError, match=r"\\u12 is no escape"):
        parse_properties("a=\\u12\n")


def test_settings_without_meaning_are_dropped_with_a_reason_each_unless_they_are_kafkas_defaults() -> None:
    accepted = accepted_settings(
        {
            "num.network.threads": "5",
            "zookeeper.max.in.flight.requests": "10",
            "num.partitions": "3",
            "node.id": "5",
            "queued.max.requests": "500",
        }
    )
    assert accepted.texts == {"num.partitions": "3", "broker.id": "5"}
    assert accepted.warnings == ["ignoring num.network.threads: one event loop serves all connections"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.engine.factory.class", "org.example.Factory"),
        ("ssl.provider", "BC"),
        ("ssl.keystore.pem", "x"),
        ("sasl.login.class", "org.example.Login"),
        ("config.providers", "env"),
        ("control.plane.listener.name", "CONTROL"),
        ("listener.name.external.num.partitions", "3"),
        ("listener.name.external.sasl.login.class", "org.example.Login"),
        ("listener.name.external.ssl.provider", "BC"),
        ("remote.log.storage.system.enable", "true"),
        ("cordoned.log.dirs", "*"),
    ],
)
def test_settings_whose_loss_would_weaken_what_was_asked_for_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        accepted_settings({name: value})


def test_values_that_ask_for_nothing_never_refuse_a_start() -> None:
    harmless = {
        "ssl.trustmanager.algorithm": "PKIX",
        "config.providers": "",
    }
    assert accepted_settings(harmless) == AcceptedSettings()
    accepted = accepted_settings({"queued.max.request.bytes": "-1", "broker.id": "-1"})
    assert Settings(accepted.texts).options.broker_id == 1
    assert accepted.warnings == ["ignoring broker.id=-1: ids are not generated; the broker has the default id, 1"]


def test_every_default_of_kafka_is_accepted() -> None:
    defaults = {name: setting.default for name, setting in kafka_settings("broker").items() if setting.default is not None}
    accepted = accepted_settings(defaults)
    Settings(accepted.texts)
    assert accepted.plugins == {} and accepted.warnings == [
        "ignoring broker.id=-1: ids are not generated; the broker has the default id, 1"
    ]


def test_listeners_of_the_controller_are_left_out() -> None:
    given = {
        "listeners": "PLAINTEXT://:9092,C://:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,C:SSL",
        "controller.listener.names": "C",
    }
    kept = {"listeners": "PLAINTEXT://:9092", "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}
    assert accepted_settings(given).texts == kept


def test_a_process_that_is_a_controller_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"process\.roles: no process has the role controller alone"):
        accepted_settings({"process.roles": "controller"})
    assert accepted_settings({"process.roles": "broker,controller"}).warnings == []


def test_settings_of_plugins_are_kept_with_a_warning() -> None:
    accepted = accepted_settings({"cruise.control.metrics.topic": "__CruiseControlMetrics"})
    assert accepted.plugins == {"cruise.control.metrics.topic": "__CruiseControlMetrics"} and accepted.texts == {}
    assert accepted.warnings == ["cruise.control.metrics.topic has no effect: it is no setting of a broker"]


def test_a_typing_error_is_told_with_the_name_that_is_meant_and_refused_if_it_was_typed_at_the_prompt() -> None:
    wrong = {"leader.imbalance.check.intervall.seconds": "300"}
    assert accepted_settings(wrong).warnings == [
        "leader.imbalance.check.intervall.seconds has no effect: it is no setting of a broker; "
        "did you mean leader.imbalance.check.interval.seconds?"
    ]
    with pytest.raises(ConfigError, match=r"unknown setting; did you mean leader\.imbalance\.check\.interval\.seconds\?"):
        accepted_settings(wrong, typed=wrong)
    (warning,) = accepted_settings({"leader.imbalance.foo": "1"}).warnings
    assert "; did you mean leader.imbalance." in warning
    with pytest.raises(ConfigError, match="unknown setting"):
        accepted_settings({"ottla.no.such.setting": "1"})


def test_every_kafka_setting_is_in_force_or_listed_with_a_reason() -> None:
    settings = kafka_settings("broker")
    assert len([one for one in settings.values() if one.origin != "3.9"]) == 379
    unlisted = [name for name in settings if treatment(name)[0] is Treatment.UNKNOWN]
    assert unlisted == []


def test_no_supported_setting_is_listed_as_unsupported() -> None:
    assert not set(SPECS_BY_NAME) & {*MEANINGLESS, *REFUSED}


def test_settings_in_force_have_kafkas_defaults_except_those_the_reference_explains() -> None:
    differing = {
        name
        for name, setting in kafka_settings("broker").items()
        if name in SPECS_BY_NAME
        and setting.default is not None
        and not setting.is_default(SPECS_BY_NAME[name].render(SPECS_BY_NAME[name].default) or "")
    }
    assert differing == set(OTHER_DEFAULTS)


#: What Kafka 4.4 ships as config/server.properties and config/broker.properties, and 3.9 as config/server.properties, without comments.
COMMON = """
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
"""
MAP = "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
STOCK = {
    "4.4 server": f"""{COMMON}
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
{MAP}
log.dirs=/tmp/kraft-combined-logs
num.recovery.threads.per.data.dir=2
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.segment.bytes=1073741824
""",
    "4.4 broker": f"""{COMMON}
process.roles=broker
node.id=2
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
{MAP}
log.dirs=/tmp/kraft-broker-logs
num.recovery.threads.per.data.dir=2
log.segment.bytes=1073741824
""",
    "3.9 server": f"""{COMMON}
broker.id=0
log.dirs=/tmp/kafka-logs
num.recovery.threads.per.data.dir=1
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
""",
}


@pytest.mark.parametrize(("file", "broker_id", "listener"), [
    ("4.4 server", 1, "PLAINTEXT://:9092"), ("4.4 broker", 2, "PLAINTEXT://localhost:9092"), ("3.9 server", 0, "PLAINTEXT://127.0.0.1:9092"),
])  # fmt: skip
def test_kafkas_stock_files_are_accepted(file: str, broker_id: int, listener: str) -> None:
    accepted = accepted_settings(parse_properties(STOCK[file]))
    options = Settings(accepted.texts, accepted.plugins).options
    assert (options.broker_id, options.listeners) == (broker_id, (listener,))
    assert (options.num_io_threads, options.socket_send_buffer_bytes, options.offsets_topic_replication_factor) == (8, 102_400, 1)
    assert accepted.plugins == {} and all(warning.startswith("ignoring ") for warning in accepted.warnings)


def test_variables_of_container_images_are_settings() -> None:
    assert settings_of_environment(
        {
            "KAFKA_NODE_ID": "3",
            "KAFKA_LOG_DIRS": "/data",
            "KAFKA_CFG_NUM_PARTITIONS": "6",
            "KAFKA_LISTENER_NAME_A__B_SSL_KEY___X": "v",
            "KAFKA_HEAP_OPTS": "-Xmx1G",
            "KAFKA_JMX_PORT": "9999",
            "KAFKA_LOG4J_ROOT_LOGLEVEL": "INFO",
            "KAFKA_OPTS": "",
            "PATH": "/bin",
        }
    ) == {"node.id": "3", "log.dirs": "/data", "num.partitions": "6", "listener.name.a-b.ssl.key_x": "v"}


def test_a_cluster_listener_without_an_advertised_name_is_warned_of() -> None:
    def warned(**texts: str) -> list[str]:
        return ProcessPlan(data_dir=Path("/data"), texts={name.replace("_", "."): text for name, text in texts.items()}).warnings()

    for host in ("", "0.0.0.0", "[::]"):
        (warning,) = warned(listeners=f"PLAINTEXT://{host}:9092")
        assert "set advertised.listeners=PLAINTEXT://HOST:9092" in warning
    assert warned(listeners="PLAINTEXT://:9092", advertised_listeners="PLAINTEXT://kafka.example:9092") == []
    assert warned(listeners="PLAINTEXT://127.0.0.1:9092") == []


@pytest.mark.parametrize(
    ("text", "address"), [("h:1", ("h", 1)), (":9092", ("", 9092)), ("[::1]:0", ("::1", 0)), ("127.0.0.1:65535", ("127.0.0.1", 65535))]
)
def test_addresses_are_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, name="x") == address
    assert address_text(address) == text


@pytest.mark.parametrize("text", ["", "h", "h:", "h:x", "h:65536", "::1:9092", "h:-1"])
def test_other_addresses_are_refused_by_the_settings_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        parse_address(text, name="--listen")
