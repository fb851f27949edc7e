"""Fault injection: an exception at each call that each handler makes, one at a time.

After it the request is answered or its connection closed, or the step raises BrokenState, or the exception was raised in an event that no
request caused, and the process stops. A broker that goes on keeps no trace of the request in its books, and serves. Calls are subsampled:
``OTTLA_INJECTIONS=100000`` in the environment raises an exception at every one.
"""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from cluster import Broker, Cluster, Sent, batch, fetch, produce, values
from groups import cluster_of_groups, commit, committed, coordinating
from plain_messages import request
from sample_requests import REQUESTS, USER, member

import ottla.broker
from ottla.base.origin import ANONYMOUS
from ottla.broker import effects, events
from ottla.broker.apis import HANDLERS, k00_produce
from ottla.broker.isolation import BrokenState, _says
from ottla.wire.declare import schema_of
from ottla.wire.messages import API, EnvelopeResponse

pytestmark = pytest.mark.slow

SOURCE = os.path.dirname(os.path.dirname(ottla.broker.__file__))
PARTS = tuple(os.path.join(SOURCE, part) + os.sep for part in ("broker", "log", "records", "wire", "store"))
#: Calls of each handler at which an exception is raised.
INJECTIONS = int(os.environ.get("OTTLA_INJECTIONS", "24"))


#: What every step runs, whatever its event.
ROUTING = ("Node.step", "Fetchers.go_on")


def _continues(frame: Any) -> bool:
    """Whether a call belongs to the end of a step, not to a request."""
    while frame is not None:
        if frame.f_code.co_qualname == "Fetchers.go_on":
            return True
        frame = frame.f_back
    return False


@dataclass
class Injection:
    """Raises at the ``at``-th call inside of steps; counts calls. 0: never."""

    at: int
    error: Callable[[str], Exception]
    calls: int = 0
    fired: str = ""
    #: The type of the event whose step it was.
    during: type = object
    event: Any = field(default=None)
    #: How many of the calls belong to the step that takes in the request; they come first.
    in_request: int = 0

    def profile(self, frame: Any, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PARTS) or code.co_flags & inspect.CO_GENERATOR:
            return
        if code.co_filename.endswith("isolation.py") or code.co_qualname in ROUTING:
            return
        self.calls += 1
        self.in_request += type(self.event) is events.RequestArrived
        if self.calls == self.at and not _continues(frame):
            self.fired = f"{code.co_qualname} at call {self.at}"
            self.during = type(self.event)
            raise self.error(self.fired)

    def into(self, broker: Broker) -> None:
        """Raise in steps of this broker from now on."""
        inner = type(broker.node).step.__get__(broker.node)

        def step(event: events.Event, now_ms: int) -> Any:
            self.event = event
            sys.setprofile(None if self.fired else self.profile)
            try:
                return inner(event, now_ms)
            finally:
                sys.setprofile(None)

        broker.node.step = step  # type: ignore[method-assign]

    def out_of(self, broker: Broker) -> None:
        del broker.node.step


def cluster_with_everything() -> Cluster:
    """Topic t with records, group g with a member of the classic protocol, group n with one of the new protocol."""
    cluster = cluster_of_groups(group_initial_rebalance_delay_ms="0", delegation_token_secret_key="key", ottla_client_metrics_enable="true")
    broker = coordinating(cluster)
    for value in (b"a", b"b"):
        assert produce(broker, batch(value)).error_code == 0
    assert commit(broker, "o", "t", 0, 1) == 0
    cluster.failures = []
    return cluster


def send(cluster: Cluster, api: str, n: int, injection: Injection | None) -> tuple[Sent | None, BaseException | None]:
    """A request and all that follows; what the step raised, if it did."""
    broker = cluster[1]
    version, fields = REQUESTS[api]
    message = request(api, fields(cluster, n))
    assert schema_of(type(message)).key is not None
    principal = USER if api.endswith("DelegationToken") else ANONYMOUS
    if injection is None:
        return broker.send(message, version, principal=principal), None
    injection.into(broker)
    sent = None
    try:
        sent = broker.send(message, version, principal=principal)
        if sent.waits and sent.closed is None:
            cluster.pass_ms(4000)
    except Exception as error:
        return sent, error
    finally:
        injection.out_of(broker)
    return sent, None


def check_books(broker: Broker) -> None:
    """Nothing waits but timers of the broker's own, and each waiting thing is known where it has to be."""
    node = broker.node
    purgatory = node.context.delayed
    assert not node.context._delayed_of and not node.context._peer_waits and not node.context._store_waits and not node.context._log_waits
    waiting = {id(parked) for group in (*purgatory._waiting.values(), *purgatory._slots.values()) for parked in group}
    assert len(waiting) == purgatory.count, "as many wait as are counted"
    assert not any(parked.done for group in (*purgatory._waiting.values(), *purgatory._slots.values()) for parked in group)
    assert not node.context.isolation.touched
    assert not broker._sent, "every request is answered"


def check_service(cluster: Cluster, n: int) -> None:
    """The broker serves, and what it acknowledged is there."""
    broker = cluster[1]
    value = b"probe %d" % n
    produced = produce(broker, batch(value), partition=2)
    assert produced.error_code == 0
    assert values(fetch(broker, produced.base_offset, partitions=(2,)).records) == [value]
    assert any(topic.name == "t" for topic in broker.ask(request("Metadata", {"topics": None}), 12).topics)
    assert commit(broker, "o", "t", 0, n) == 0
    assert committed(broker, "o")["t", 0][0] == n
    assert member(cluster, f"probe{n}").error_code == 0


def places(counted: Injection, rng: Random) -> list[int]:
    """Half of them in the step that takes in the request, where an exception must not stop the broker."""
    first = rng.sample(range(1, counted.in_request + 1), min(counted.in_request, INJECTIONS // 2))
    return sorted({*first, *rng.sample(range(1, counted.calls + 1), min(counted.calls, INJECTIONS - len(first)))})


def check_outcome(sent: Sent | None, cluster: Cluster, injection: Injection, version: int) -> None:
    """The request was answered or closed."""
    assert sent is not None and (sent.answer is not None or sent.closed is not None), f"no answer after {injection.fired}"
    mine = [failed for failed in cluster.failures or () if failed.call is not None and failed.call.connection == sent.connection]
    reloaded = {
        "JoinGroup",
        "SyncGroup",
        "Heartbeat",
        "LeaveGroup",
        "OffsetCommit",
        "OffsetDelete",
        "DeleteGroups",
        "ConsumerGroupHeartbeat",
        "EndTxn",
    }
    enveloped = isinstance(sent.answer, EnvelopeResponse)
    if mine and sent.closed is None and not enveloped and API[mine[0].call.api_key].name not in reloaded:  # type: ignore[union-attr]
        assert _says(sent.answer, version), f"{injection.fired}: {sent.answer}"


@pytest.mark.parametrize("api", sorted(REQUESTS))
def test_an_exception_at_any_call_costs_the_request_or_stops_the_broker(api: str) -> None:
    rng = Random(api)
    cluster = cluster_with_everything()
    counted = Injection(0, AssertionError)
    # The first one of its kind compiles codecs and fills caches.
    send(cluster, api, 1, None)
    cluster.pass_ms(4000)
    send(cluster, api, 2, counted)
    isolated = 0
    for n, at in enumerate(places(counted, rng), start=3):
        injection = Injection(at, rng.choice((AssertionError, KeyError, TypeError)))
        sent, stopped = send(cluster, api, n, injection)
        if stopped is not None:
            assert isinstance(stopped, BrokenState) or injection.during is not events.RequestArrived, (
                f"{injection.fired} stopped the broker"
            )
            cluster = cluster_with_everything()
            continue
        if not injection.fired:
            continue
        check_outcome(sent, cluster, injection, REQUESTS[api][0])
        isolated += bool(cluster.failures)
        cluster.failures = []
        check_books(cluster[1])
        check_service(cluster, n)
    assert isolated or not counted.calls, "some exceptions cost the request alone"
    acknowledged = values(fetch(cluster[1], partitions=(2,)).records)
    cluster.failures = None
    broker = cluster.restart(1)
    cluster.pass_ms(20_000)
    assert values(fetch(broker, partitions=(2,)).records) == acknowledged


def test_a_failure_is_in_the_log_before_its_client_reads_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with_everything()
    broker = cluster[1]
    asked: list[effects.Effect] = []
    inner = broker.node.step

    def step(event: events.Event, now_ms: int) -> list[effects.Effect]:
        done = inner(event, now_ms)
        asked.extend(done)
        return done

    def fails(*arguments: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(broker.node, "step", step)
    monkeypatch.setattr(k00_produce, "_append", fails)
    assert produce(broker, batch(b"v")).error_code == -1
    kinds = [type(effect) for effect in asked]
    assert kinds.index(effects.RequestFailed) < kinds.index(effects.Respond), "a flight record is written before the line"


def test_every_handler_is_tried() -> None:
    assert set(REQUESTS) == {API[key].name for key in HANDLERS}
