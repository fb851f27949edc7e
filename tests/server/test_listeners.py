"""Several listeners of a broker: the rules of their settings, and what clients of each get."""

from pathlib import Path
from typing import Any

import pytest
from socket_peers import Peer, until

from ottla.base.listeners import Endpoint, SecurityProtocol
from ottla.base.options import ConfigError
from ottla.broker.metadata.configs import Settings
from ottla.server.listeners import Listeners
from ottla.server.process import Process
from ottla.server.process_plan import ProcessPlan
from ottla.wire import framing
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse

pytestmark = pytest.mark.server

MAP = "CLIENT:PLAINTEXT,BROKER:PLAINTEXT"


def listeners(**texts: str) -> Listeners:
    """From settings whose dots are underscores."""
    return Listeners.of(Settings({name.replace("_", "."): text for name, text in texts.items()}).options)


def test_a_listener_has_a_name_an_address_and_the_protocol_of_the_map() -> None:
    found = listeners(
        listeners="Client://:9092,BROKER://10.0.0.1:9094",
        listener_security_protocol_map="client:plaintext, BROKER:PLAINTEXT",
        advertised_listeners="CLIENT://kafka.example:19092,BROKER://10.0.0.1:9094",
        inter_broker_listener_name="broker",
    )
    assert found.endpoints == (Endpoint("CLIENT", "", 9092), Endpoint("BROKER", "10.0.0.1", 9094))
    assert found.advertised == (Endpoint("CLIENT", "kafka.example", 19092), Endpoint("BROKER", "10.0.0.1", 9094))
    assert found.inter_broker == "BROKER"


def test_the_listener_between_brokers_is_named_as_its_protocol_unless_a_name_is_set() -> None:
    assert listeners(listeners="PLAINTEXT://h:1,OTHER://h:2", listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT") == (
        Listeners(found := (Endpoint("PLAINTEXT", "h", 1), Endpoint("OTHER", "h", 2)), found, "PLAINTEXT")
    )


def test_an_ipv4_and_an_ipv6_address_may_share_a_port() -> None:
    found = listeners(listeners="PLAINTEXT://127.0.0.1:1,SIX://[::1]:1", listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT")
    assert [endpoint.text for endpoint in found.endpoints] == ["PLAINTEXT://127.0.0.1:1", "SIX://[::1]:1"]


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"listeners": ""}, "listeners: expected at least one listener"),
        ({"listeners": "h:9092"}, "listeners: expected NAME://HOST:PORT"),
        ({"listeners": "CLIENT://h:1"}, "listeners: no security protocol is defined for listener CLIENT"),
        ({"listeners": "PLAINTEXT://h:1,plaintext://h:2"}, "each listener must have a different name, and two are named PLAINTEXT"),
        ({"listeners": "CLIENT://a:1,BROKER://b:1", "listener_security_protocol_map": MAP}, "different port, and CLIENT and BROKER have 1"),
        ({"listeners": "CLIENT://:1,BROKER://127.0.0.1:1", "listener_security_protocol_map": MAP}, "different port"),
        ({"listener_security_protocol_map": "CLIENT"}, "listener.security.protocol.map: expected NAME:PROTOCOL, not 'CLIENT'"),
        ({"listener_security_protocol_map": "CLIENT:TLS"}, "listener.security.protocol.map: 'TLS' is not one of PLAINTEXT, SSL"),
        ({"listener_security_protocol_map": "A:SSL,a:PLAINTEXT"}, "listener A has two protocols, SSL and PLAINTEXT"),
        ({"advertised_listeners": "PLAINTEXT://0.0.0.0:1"}, "advertised.listeners: PLAINTEXT://0.0.0.0:1 is no address"),
        ({"advertised_listeners": "SSL://h:1"}, "advertised.listeners: SSL is no listener of this broker; it listens as PLAINTEXT"),
        ({"inter_broker_listener_name": "OTHER"}, "inter.broker.listener.name: listener OTHER is not in listener.security.protocol.map"),
        ({"inter_broker_listener_name": "SSL"}, "brokers use the listener SSL, which is not advertised; set it to one of PLAINTEXT"),
        ({"security_inter_broker_protocol": "SSL"}, "brokers use the listener SSL, which is not advertised"),
        ({"security_inter_broker_protocol": "TLS"}, "security.inter.broker.protocol: 'TLS' is not one of"),
        (
            {"security_inter_broker_protocol": "SSL", "inter_broker_listener_name": "PLAINTEXT"},
            "only one of inter.broker.listener.name and security.inter.broker.protocol may be set",
        ),
        (
            {"listeners": "CLIENT://h:1,BROKER://h:2", "listener_security_protocol_map": MAP,
             "advertised_listeners": "CLIENT://h:1", "inter_broker_listener_name": "BROKER"},
            "brokers use the listener BROKER, which is not advertised; set it to one of CLIENT",
        ),
    ],
)  # fmt: skip
def test_listeners_that_contradict_each_other_are_refused(texts: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        listeners(**texts)
    assert problem in str(refused.value)


def test_a_setting_of_a_listener_that_does_not_exist_is_refused() -> None:
    for name in ("listener.name.cleint.max.connections", "listener.name.CLIENT.max.connections"):
        plan = ProcessPlan(data_dir=Path("/data"), texts={**TWO, name: "5"})
        with pytest.raises(ConfigError, match=r"there is no listener .*; the names are, in lower case, client, broker"):
            plan.listeners()


def test_brokers_of_one_process_need_room_between_the_ports_of_their_listeners() -> None:
    texts = {**TWO, "listeners": "CLIENT://127.0.0.1:9092,BROKER://127.0.0.1:9094"}
    ProcessPlan(data_dir=Path("/data"), texts=texts, brokers=2).listeners()
    with pytest.raises(ConfigError, match="3 brokers need 3 ports for each listener, from 9092 and 9094 on"):
        ProcessPlan(data_dir=Path("/data"), texts=texts, brokers=3).listeners()


TWO = {
    "listeners": "CLIENT://127.0.0.1:0,BROKER://127.0.0.1:0",
    "listener.security.protocol.map": MAP,
    "inter.broker.listener.name": "BROKER",
}


class Running:
    """Brokers in this process."""

    def __init__(self, data_dir: Path, texts: dict[str, str], brokers: int = 1) -> None:
        self.process = Process(ProcessPlan(data_dir=data_dir, texts=texts, brokers=brokers))

    async def __aenter__(self) -> "Running":
        try:
            await self.process.start()
        except BaseException:
            await self.process.stop()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self.process.request_stop()
        await self.process.stop()

    async def brokers(self, listener: str, number: int = 0) -> list[tuple[str, int]]:
        """What Metadata says of the brokers on this listener."""
        peer = await Peer.connected(self.process.brokers[number].addresses[listener])
        await peer.send(b"".join(framing.encode_request(MetadataRequest(topics=[]), 9, 1, "test")))  # type: ignore[arg-type]
        answer: Any = framing.decode_response(MetadataResponse, memoryview(bytearray(await peer.frame())), 9)[1]
        peer.close()
        return [(broker.host, broker.port) for broker in answer.brokers]


async def test_clients_get_the_addresses_of_the_listener_that_they_use(tmp_path: Path) -> None:
    async with Running(tmp_path, TWO, brokers=2) as run:
        for listener in ("CLIENT", "BROKER"):
            addresses = [broker.addresses[listener] for broker in run.process.brokers]
            assert [await run.brokers(listener, number) for number in (0, 1)] == [addresses, addresses]
        assert len({address for broker in run.process.brokers for address in broker.addresses.values()}) == 4


async def test_a_listener_that_is_not_advertised_has_no_brokers(tmp_path: Path) -> None:
    async with Running(tmp_path, {**TWO, "advertised.listeners": "BROKER://broker.example:0"}) as run:
        assert await run.brokers("CLIENT") == []
        assert await run.brokers("BROKER") == [("broker.example", run.process.brokers[0].addresses["BROKER"][1])]


async def test_a_listener_has_its_own_limit_of_connections(tmp_path: Path) -> None:
    async with Running(tmp_path, {**TWO, "listener.name.client.max.connections": "1"}) as run:
        first = await Peer.connected(run.process.brokers[0].addresses["CLIENT"])
        with pytest.raises((EOFError, ConnectionError)):
            await run.brokers("CLIENT")
        assert await run.brokers("BROKER")
        first.close()


async def test_brokers_take_the_place_of_idle_clients_when_there_are_too_many_connections(tmp_path: Path) -> None:
    async with Running(tmp_path, {**TWO, "max.connections": "2"}) as run:
        oldest, newer = [await Peer.connected(run.process.brokers[0].addresses["CLIENT"]) for _ in range(2)]
        await until(lambda: len(run.process.connection_context.connections) == 2)
        assert await run.brokers("BROKER")
        assert await oldest.closed()
        assert run.process.connection_context.traffic.cut["room for a broker"] == 1
        newer.close()


def test_protocols_say_whether_they_encrypt_and_authenticate() -> None:
    assert [(one.tls, one.sasl) for one in SecurityProtocol] == [(False, False), (True, False), (False, True), (True, True)]
