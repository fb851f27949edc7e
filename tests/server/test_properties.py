"""``server.properties`` files and Kafka's setting names."""

from pathlib import Path

import pytest

from ottla.base.options import ConfigError
from ottla.broker.metadata.configs import SPECS_BY_NAME
from ottla.server.addresses import address_text, parse_address, parse_listener
from ottla.server.server_properties import MEANINGLESS, REFUSED, accepted_settings, parse_properties

pytestmark = pytest.mark.server

#: Names of the settings that DescribeConfigs of Apache Kafka 4.3 returns.
OF_KAFKA = (Path(__file__).parent / "kafka_settings.txt").read_text().split()


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


def test_names_without_meaning_are_dropped_with_a_reason_each() -> None:
    kept, warnings = accepted_settings(
        {"num.network.threads": "3", "zookeeper.max.in.flight.requests": "10", "num.partitions": "3", "node.id": "5"}
    )
    assert kept == {"num.partitions": "3", "broker.id": "5"}
    assert len(warnings) == 2 and "zookeeper.max.in.flight.requests: requests to the store" in warnings[1]


@pytest.mark.parametrize(
    "name", ["ssl.keystore.location", "sasl.enabled.mechanisms", "authorizer.class.name", "super.users", "config.providers"]
)
def test_names_whose_loss_would_weaken_what_was_asked_for_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        accepted_settings({name: "x"})


def test_a_listener_with_encryption_is_refused_unless_it_is_the_controllers() -> None:
    with pytest.raises(ConfigError, match="listener INTERNAL asks for SSL"):
        accepted_settings({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SSL"})
    accepted_settings({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,C:SSL", "controller.listener.names": "C"})


def test_unknown_names_are_left_for_the_options_to_refuse() -> None:
    assert accepted_settings({"no.such.thing": "1"}) == ({"no.such.thing": "1"}, [])


def test_every_kafka_setting_is_supported_or_listed_with_a_reason() -> None:
    def reported(name: str) -> bool:
        try:
            kept, warnings = accepted_settings({name: "x"})
        except ConfigError:
            return True
        return bool(warnings) or set(kept) <= set(SPECS_BY_NAME)

    assert len(OF_KAFKA) == 340
    assert [name for name in OF_KAFKA if not reported(name)] == []


def test_no_supported_setting_is_listed_as_unsupported() -> None:
    assert not set(SPECS_BY_NAME) & {*MEANINGLESS, *REFUSED}


@pytest.mark.parametrize(
    ("text", "address"), [("h:1", ("h", 1)), (":9092", ("", 9092)), ("[::1]:0", ("::1", 0)), ("127.0.0.1:65535", ("127.0.0.1", 65535))]
)
def test_addresses_are_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, name="x") == address
    assert parse_listener(f"PLAINTEXT://{text}", name="x") == address
    assert address_text(address) == text


@pytest.mark.parametrize("text", ["", "h", "h:", "h:x", "h:65536", "::1:9092", "h:-1"])
def test_other_addresses_are_refused_by_the_settings_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        parse_address(text, name="--listen")
