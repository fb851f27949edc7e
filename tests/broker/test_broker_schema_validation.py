"""Topics with ``ottla.value.schema.validation``: what a broker appends, refuses, asks and remembers. The registry is the test's."""

from itertools import count
from random import Random
from typing import Any

import pytest
from access_rules import AUTHORIZER, grant, rule
from cluster import WALL_MS, Broker, Cluster, Sent, batch, fetch, produce, produce_request, values
from test_broker_configs import SET, change
from transactional import Producer, cluster_of_transactions, state_of

from ottla.base.acls import Operation
from ottla.base.ids import ConnectionId
from ottla.base.origin import ANONYMOUS
from ottla.base.ports import Op
from ottla.broker import effects, events
from ottla.broker.apis.schema_validation import SCHEMAS_MAX
from ottla.broker.schema_registry import ASKED_MAX
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

URL = {"ottla.schema.registry.url": "http://registry:8081"}
VALUES = {"ottla.value.schema.validation": "true"}
KEYS = {"ottla.key.schema.validation": "true"}
INVALID, LATER = errors.InvalidRecord.code, errors.NotEnoughReplicas.code


def framed(number: int, content: bytes = b"x") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + content


def a_broker(configs: dict[str, str] = VALUES, *, partitions: int = 1, **settings: str) -> Broker:
    """A broker that leads the topic t. Its registry has the schemas 1 to 3 under t-value."""
    cluster = Cluster(settings={**URL, **{name.replace("_", "."): text for name, text in settings.items()}})
    broker = cluster.topic(configs=configs, partitions=partitions)
    broker.schemas = {"t-value": {1, 2, 3}}
    return broker


def send(broker: Broker, *contents: bytes, **fields: Any) -> Sent:
    return broker.send(produce_request(batch(*contents), **fields), 12)


def answered(sent: Sent) -> Any:
    assert sent.answer is not None, "the request waits"
    return sent.answer.responses[0].partition_responses[0]


def test_a_batch_that_waits_for_the_registry_is_not_written_after_its_right_is_removed() -> None:
    lenient: dict[str, Any] = {**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    broker = a_broker(**{name.replace(".", "_"): text for name, text in lenient.items()})
    broker.schemas = None
    sent = send(broker, framed(1))
    assert sent.waits
    grant(broker.cluster, rule(Operation.WRITE, principal=ANONYMOUS, deny=True))
    broker.schemas = {"t-value": {1}}
    broker.looked_up(broker.lookups[0])
    assert answered(sent).error_code == errors.TopicAuthorizationFailed.code and broker.leader("t").log.end_offset == 0


# What is appended, and what is refused.


def test_records_with_registered_schemas_are_appended() -> None:
    broker = a_broker()
    sent = [framed(1), framed(2, b""), framed(1)]
    assert produce(broker, batch(*sent)).error_code == 0
    assert values(fetch(broker).records) == sent
    assert [(one.subject, one.ids) for one in broker.lookups] == [("t-value", (1, 2))]


def test_an_unknown_schema_refuses_the_batch_and_names_the_record() -> None:
    broker = a_broker()
    answer = produce(broker, batch(framed(1), framed(9), framed(9), framed(2), framed(8)))
    assert answer.error_code == INVALID and broker.leader("t").log.end_offset == 0
    assert [(one.batch_index, one.batch_index_error_message) for one in answer.record_errors] == [
        (1, "the schema registry has no schema 9 under the subject t-value"),
        (4, "the schema registry has no schema 8 under the subject t-value"),
    ]
    assert (
        answer.error_message == f"record 1 of the batch for t-0 names no valid schema: {answer.record_errors[0].batch_index_error_message}"
    )
    assert broker.node.schemas.refused_batches == 1


@pytest.mark.parametrize("content", [b"", b"plain text", b"\0\0\0\1"])
def test_a_value_without_a_frame_is_refused_without_a_question(content: bytes) -> None:
    broker = a_broker()
    answer = produce(broker, batch(framed(1), content))
    assert answer.error_code == INVALID and not broker.lookups
    assert [one.batch_index for one in answer.record_errors] == [1]
    assert "the value of record 1 does not begin with" in answer.error_message


def test_null_values_pass() -> None:
    broker = a_broker()
    assert produce(broker, bytes(build_batch([(WALL_MS, b"k", None, ()), (WALL_MS, None, framed(1), ())]))).error_code == 0
    assert values(fetch(broker).records) == [None, framed(1)]


def test_keys_and_values_are_validated_separately() -> None:
    broker = a_broker(KEYS)
    assert broker.schemas is not None
    broker.schemas["t-key"] = {4}
    assert produce(broker, batch(b"anything", key=framed(4))).error_code == 0
    assert "no schema 1 under the subject t-key" in produce(broker, batch(framed(1), key=framed(1))).error_message
    assert change(broker, ("ottla.value.schema.validation", SET, "true")).error_code == 0
    answer = produce(broker, batch(b"anything", key=b"anything"))
    assert [one.batch_index_error_message[:8] for one in answer.record_errors] == ["the key ", "the valu"]
    assert produce(broker, batch(framed(1), key=framed(4))).error_code == 0


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_are_read(codec: Codec) -> None:
    broker = a_broker()
    assert produce(broker, batch(*[framed(1, b"x" * 50)] * 20, codec=codec)).error_code == 0
    answer = produce(broker, batch(*[framed(1, b"x" * 50)] * 20, framed(9), codec=codec))
    assert (answer.error_code, answer.record_errors[0].batch_index) == (INVALID, 20)


def test_unreadable_batches_keep_their_errors() -> None:
    broker = a_broker({**VALUES, "max.message.bytes": "200"})
    damaged = batch(framed(1))[:-1] + b"?"
    assert produce(broker, damaged).error_code == errors.CorruptMessage.code
    assert produce(broker, batch(framed(1, b"x" * 300))).error_code == errors.MessageTooLarge.code
    assert produce(broker, b"").error_code == INVALID
    assert produce(broker, batch(framed(1)), partition=4).error_code == errors.UnknownTopicOrPartition.code
    assert not broker.lookups


def test_ids_that_no_registry_gives_are_refused_without_a_question() -> None:
    broker = a_broker()
    for number in (0, 1 << 31):
        assert produce(broker, batch(framed(number))).error_code == INVALID
    assert produce(broker, batch(*(framed(number) for number in range(1, SCHEMAS_MAX + 2)))).error_code == INVALID
    assert not broker.lookups


def test_a_refused_batch_leaves_other_partitions_and_topics_alone() -> None:
    broker = a_broker(partitions=2)
    broker.cluster.topic("plain")
    request = produce_request(batch(framed(9)))
    request.topic_data[0].partition_data += produce_request(batch(framed(1)), partition=1).topic_data[0].partition_data
    request.topic_data += produce_request(batch(b"x"), topic="plain").topic_data
    answer = broker.ask(request, 12)
    assert [(topic.name, sorted((one.index, one.error_code) for one in topic.partition_responses)) for topic in answer.responses] == [
        ("t", [(0, INVALID), (1, 0)]),
        ("plain", [(0, 0)]),
    ]


def test_topics_by_id_and_produce_without_answers_are_validated() -> None:
    broker = a_broker()
    topic_id = broker.node.context.image.topics["t"].topic_id
    assert produce(broker, batch(framed(9)), version=13, topic=bytes(topic_id)).error_code == INVALID
    assert produce(broker, batch(framed(1)), version=13, topic=bytes(topic_id)).error_code == 0
    assert send(broker, framed(9), acks=0).closed is not None
    assert send(broker, framed(1), acks=0).released
    assert values(fetch(broker).records) == [framed(1)] * 2


# Settings.


def test_topics_without_the_setting_ask_nothing() -> None:
    broker = a_broker({})
    assert produce(broker, batch(b"x")).error_code == 0
    assert change(broker, ("ottla.value.schema.validation", SET, "true")).error_code == 0
    assert produce(broker, batch(b"x")).error_code == INVALID
    assert change(broker, ("ottla.value.schema.validation", SET, "false")).error_code == 0
    assert produce(broker, batch(b"x")).error_code == 0
    assert not broker.lookups and not broker.node.schemas.topics


def test_the_setting_needs_a_registry() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    refused = change(broker, ("ottla.value.schema.validation", SET, "true"))
    assert refused.error_code == errors.InvalidConfig.code and "ottla.schema.registry.url" in refused.error_message
    assert change(broker, ("ottla.key.schema.validation", SET, "false")).error_code == 0
    topic = CreatableTopic(
        name="u", num_partitions=1, replication_factor=1, configs=[CreatableTopicConfig(name=name, value="true") for name in KEYS]
    )
    assert broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7).topics[0].error_code == errors.InvalidConfig.code


def test_a_new_broker_validates_the_topics_that_it_finds() -> None:
    cluster = a_broker().cluster
    broker = cluster.restart(1)
    assert produce(broker, batch(framed(9))).error_code == INVALID


def test_a_topic_that_is_created_again_begins_without_validation() -> None:
    broker = a_broker()
    deleted = broker.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
    assert deleted.responses[0].error_code == 0
    broker.cluster.topic("t")
    assert produce(broker, batch(b"x")).error_code == 0 and not broker.node.schemas.topics


@pytest.mark.parametrize("left", [False, True])
def test_a_topic_that_is_created_automatically_begins_without_validation(left: bool) -> None:
    """Also where the store has settings that a tool has left below the name."""
    broker = Cluster(settings=URL)[1]
    if left:
        tool = broker.cluster.store.session()
        tool.submit([Op("create", layout.config("topics", "new"), layout.encode_config(VALUES))], lambda result: None)
        broker.cluster.run()
        assert broker.node.schemas.topics == {"new"}
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    codes = [broker.ask(request, 12).topics[0].error_code for _ in range(2)]
    assert codes == [errors.UnknownTopicOrPartition.code, 0]
    assert produce(broker, batch(b"x"), topic="new").error_code == 0
    assert not broker.lookups and not broker.node.schemas.topics
    broker.schemas = {"new-value": {1}}
    assert change(broker, ("ottla.value.schema.validation", SET, "true"), name="new").error_code == 0
    assert produce(broker, batch(b"x"), topic="new").error_code == INVALID
    assert produce(broker, batch(framed(1)), topic="new").error_code == 0


# Waiting, and what is remembered.


def test_a_produce_waits_for_the_registry_with_its_own_copy_of_the_records() -> None:
    broker = a_broker()
    there, broker.schemas = broker.schemas, None
    data = bytearray(batch(framed(1)))
    request = produce_request(memoryview(data))  # type: ignore[arg-type]
    event = arrived(1, 1, request)
    broker.node.step(event, broker.cluster.now_ms)
    data[:] = bytes(len(data))
    [lookup] = lookups(broker)
    broker.schemas = there
    broker.node.step(events.SchemasLookedUp(ticket=lookup.ticket, subject="t-value", registered=(1,)), broker.cluster.now_ms)
    assert broker.leader("t").log.end_offset == 1


def lookups(broker: Broker) -> list[effects.LookUpSchemas]:
    return [effect for effect in broker.node.context.effects if isinstance(effect, effects.LookUpSchemas)]


def arrived(connection: int, ticket: int, body: Any) -> events.RequestArrived[Any]:
    return events.RequestArrived(
        connection=ConnectionId(connection), correlation_id=ticket, api_key=0, api_version=12, client_id="c", body=body, ticket=ticket
    )


def test_requests_of_a_connection_keep_their_order() -> None:
    """The second waits although its schema is known, the third although its topic is not validated; another connection does not."""
    broker = a_broker()
    cluster, node = broker.cluster, broker.node
    cluster.topic("plain")
    produce(broker, batch(framed(1)))
    tickets = count(1)

    def step(connection: int, content: bytes, topic: str = "t") -> list[effects.Effect]:
        request = produce_request(memoryview(bytearray(batch(content))), topic=topic, acks=1)  # type: ignore[arg-type]
        return node.step(arrived(connection, next(tickets), request), cluster.now_ms)

    [lookup] = [one for one in step(900, framed(2)) if isinstance(one, effects.LookUpSchemas)]
    assert not any(isinstance(one, effects.Respond) for one in step(900, framed(1)) + step(900, b"x", "plain"))
    assert [one.connection for one in step(901, framed(1)) if isinstance(one, effects.Respond)] == [901]
    done = node.step(events.SchemasLookedUp(ticket=lookup.ticket, subject="t-value", registered=(2,)), cluster.now_ms)
    assert [one.ticket for one in done if isinstance(one, effects.Respond)] == [1, 2, 3]
    assert broker.leader("t").log.end_offset == 4 and not node.schemas.waiting


@pytest.mark.parametrize("created", [False, True])
def test_validation_that_begins_while_a_produce_waits_refuses_its_batch_for_now(created: bool) -> None:
    """The topic is created with it, or gets the setting. A request behind one that waits for the registry was not validated for it."""
    broker = a_broker()
    node, cluster = broker.node, broker.cluster
    if not created:
        cluster.topic("new")
    first = node.step(arrived(900, 1, produce_request(memoryview(batch(framed(2))), acks=1)), cluster.now_ms)  # type: ignore[arg-type]
    [lookup] = [one for one in first if isinstance(one, effects.LookUpSchemas)]
    behind = produce_request(memoryview(batch(b"x")), topic="new", acks=1)  # type: ignore[arg-type]
    assert not any(isinstance(one, effects.Respond) for one in node.step(arrived(900, 2, behind), cluster.now_ms))
    if created:
        cluster.topic("new", configs=VALUES)
    else:
        assert change(broker, ("ottla.value.schema.validation", SET, "true"), name="new").error_code == 0
    done = node.step(events.SchemasLookedUp(ticket=lookup.ticket, subject="t-value", registered=(2,)), cluster.now_ms)
    codes = [one.message.responses[0].partition_responses[0].error_code for one in done if isinstance(one, effects.Respond)]
    assert codes == [0, LATER]
    assert broker.leader("new").log.end_offset == 0
    assert produce(broker, batch(b"x"), topic="new").error_code == INVALID


def test_answers_are_remembered_for_their_time() -> None:
    broker = a_broker(ottla_schema_registry_cache_ms="10000")
    for _ in range(2):
        assert produce(broker, batch(framed(1))).error_code == 0
        assert produce(broker, batch(framed(9))).error_code == INVALID
    assert len(broker.lookups) == 2
    assert broker.schemas is not None
    broker.schemas["t-value"] = {9}
    broker.cluster.pass_ms(1_100)
    assert produce(broker, batch(framed(9))).error_code == 0, "that a schema is missing counts for a second"
    assert produce(broker, batch(framed(1))).error_code == 0
    broker.cluster.pass_ms(9_000)
    assert produce(broker, batch(framed(1))).error_code == INVALID, "a deleted version is noticed after the cache's time"


def test_the_cache_forgets_the_oldest() -> None:
    broker = a_broker(ottla_schema_registry_cache_size="1000")
    assert broker.schemas is not None
    broker.schemas["t-value"] = set(range(1, 1_101))
    for first in range(1, 1_101, 100):
        assert produce(broker, batch(*(framed(number) for number in range(first, first + 100)))).error_code == 0
    asked = len(broker.lookups)
    assert produce(broker, batch(framed(1_100))).error_code == 0 and len(broker.lookups) == asked
    assert produce(broker, batch(framed(1))).error_code == 0 and len(broker.lookups) == asked + 1


# A registry that is slow, or gone.


def test_a_lost_answer_is_a_retriable_error_and_nothing_is_asked_for_a_second() -> None:
    broker = a_broker()
    broker.schemas = None
    waiting = [send(broker, framed(1)), send(broker, framed(1)), send(broker, framed(2))]
    assert len(broker.lookups) == 2, "one question for each schema"
    broker.cluster.pass_ms(4_990)
    assert all(sent.waits for sent in waiting)
    broker.cluster.pass_ms(20)
    assert [answered(sent).error_code for sent in waiting] == [LATER] * 3
    assert "no answer within 5000 ms" in answered(waiting[0]).error_message and broker.leader("t").log.end_offset == 0
    assert answered(send(broker, framed(1))).error_code == LATER and len(broker.lookups) == 2
    broker.cluster.pass_ms(1_000)
    again = send(broker, framed(1))
    assert again.waits and len(broker.lookups) == 3
    broker.schemas = {"t-value": {1}}
    broker.looked_up(broker.lookups[-1])
    assert answered(again).error_code == 0
    assert [line for line in broker.logged("ottla.replica") if "schema registry" in line] == [
        "the schema registry does not answer: no answer within 5000 ms (ottla.schema.registry.timeout.ms); "
        "produce to topics with schema validation is refused until it answers",
        "the schema registry answers again",
    ]
    schemas = broker.node.schemas
    assert (schemas.found, schemas.not_found, schemas.lost) == (1, 0, 2)


def test_a_late_answer_is_used() -> None:
    broker = a_broker()
    there, broker.schemas = broker.schemas, None
    sent = send(broker, framed(1))
    broker.cluster.pass_ms(5_100)
    assert answered(sent).error_code == LATER
    broker.schemas = there
    broker.looked_up(broker.lookups[0])
    assert produce(broker, batch(framed(1))).error_code == 0 and len(broker.lookups) == 1


def test_an_answer_with_a_problem_counts_as_far_as_it_goes() -> None:
    broker = a_broker(partitions=2)
    there, broker.schemas = broker.schemas, None
    request = produce_request(batch(framed(1)))
    request.topic_data[0].partition_data += produce_request(batch(framed(2)), partition=1).topic_data[0].partition_data
    sent = broker.send(request, 12)
    broker.schemas = there
    broker.looked_up(broker.lookups[0], lost=[2], problem="connection refused")
    assert sorted((one.index, one.error_code) for one in sent.answer.responses[0].partition_responses) == [(0, 0), (1, LATER)]


def test_an_incomplete_answer_is_lost() -> None:
    broker = a_broker()
    there, broker.schemas = broker.schemas, None
    sent = send(broker, framed(1), framed(2))
    broker.schemas = there
    broker.looked_up(broker.lookups[0], lost=[2])
    assert answered(sent).error_code == LATER and "incomplete" in answered(sent).error_message


def test_a_closed_connection_and_a_stop_leave_nothing() -> None:
    broker = a_broker()
    broker.schemas = None
    broker.hang_up(send(broker, framed(1)))
    schemas = broker.node.schemas
    assert not schemas.waiting
    broker.looked_up(broker.lookups[0])
    assert broker.leader("t").log.end_offset == 0
    broker.cluster.pass_ms(1_100)
    stopped = send(broker, framed(2))
    broker.cluster.stop(1)
    assert answered(stopped).error_code == LATER


def test_questions_in_progress_have_a_limit() -> None:
    broker = a_broker()
    broker.schemas = None
    some = [send(broker, *(framed(number) for number in range(first, first + 100))) for first in range(1, ASKED_MAX, 100)]
    assert all(sent.waits for sent in some)
    more = answered(send(broker, framed(ASKED_MAX + 1)))
    assert more.error_code == LATER and "too many" in more.error_message


# Producers with state.


def test_a_refused_batch_of_an_idempotent_producer_changes_no_state() -> None:
    broker = a_broker()

    def numbered(sequence: int, content: bytes) -> bytes:
        return batch(content, producer_id=7, producer_epoch=0, base_sequence=sequence)

    assert produce(broker, numbered(0, framed(9))).error_code == INVALID
    assert not broker.leader("t").log.producers.by_id
    assert produce(broker, numbered(0, framed(1))).error_code == 0
    assert produce(broker, numbered(1, framed(9))).error_code == INVALID
    assert produce(broker, numbered(1, framed(1))).error_code == 0
    assert produce(broker, numbered(1, framed(1))).base_offset == 1, "a duplicate"


def test_a_refused_batch_begins_no_transaction() -> None:
    cluster = cluster_of_transactions(ottla_schema_registry_url="http://registry:8081")
    assert change(cluster[1], ("ottla.value.schema.validation", SET, "true")).error_code == 0
    cluster[1].schemas = {"t-value": {1}}
    producer = Producer(cluster)
    assert producer.send(framed(9).decode()) == INVALID
    assert not state_of(cluster).partitions
    assert producer.send(framed(1).decode()) == 0
    assert producer.end() == 0


def test_validation_that_begins_while_a_transaction_is_verified_refuses_its_batch_for_now() -> None:
    cluster = cluster_of_transactions(ottla_schema_registry_url="http://registry:8081")
    broker, producer = cluster.leading("t"), Producer(cluster)
    broker.schemas = {"t-value": {1}}
    cluster.flushing = False
    sent = producer.start("plain")
    assert sent.waits
    assert change(broker, ("ottla.value.schema.validation", SET, "true")).error_code == 0
    cluster.flushing = True
    broker.flush()
    assert answered(sent).error_code == LATER and broker.leader("t").log.end_offset == 0
    assert producer.send(framed(1).decode()) == 0
    assert producer.end() == 0


# Any order of events.


@pytest.mark.parametrize("seed", range(25))
def test_no_appended_record_names_a_schema_that_the_registry_never_had(seed: int) -> None:
    """Answers come late, in any order, incomplete, or never; schemas are registered and deleted; clients hang up; the broker restarts.

    Some requests name a second topic, which is created with validation in the middle.
    """
    rng, broker = Random(seed), a_broker(partitions=2)
    cluster, there, ever = broker.cluster, {1, 2}, {1, 2}
    broker.schemas = None
    sent: list[Sent] = []
    for step in range(150):
        if step == 75:
            cluster.topic("u", configs=VALUES)
        match rng.randrange(8):
            case 0 | 1 | 2:
                contents = [rng.choice((None, framed(rng.randrange(1, 10)))) for _ in range(rng.randrange(1, 4))]
                data = bytes(build_batch([(cluster.wall_ms, None, content, ()) for content in contents]))
                request = produce_request(data, partition=rng.randrange(2), timeout_ms=30_000)
                if rng.random() < 0.3:
                    request.topic_data += produce_request(batch(rng.choice((b"plain", framed(1)))), topic="u").topic_data
                sent.append(broker.send(request, 12))
            case 3 | 4 if broker.lookups:
                lookup = broker.lookups.pop(rng.randrange(len(broker.lookups)))
                broker.schemas = {"t-value": there, "u-value": there}
                problem = rng.random() < 0.2
                broker.looked_up(lookup, lost=lookup.ids[: rng.randrange(3)] if problem else (), problem="reset" if problem else "")
                broker.schemas = None
            case 5:
                number = rng.randrange(1, 7)
                there = there ^ {number}
                ever |= there
            case 6:
                cluster.pass_ms(rng.choice((10, 300, 1_500, 6_000)))
            case 7:
                waiting = [one for one in sent if one.waits]
                if waiting and rng.random() < 0.3:
                    gone = rng.choice(waiting)
                    sent.remove(gone)
                    broker.hang_up(gone)
                elif rng.random() < 0.1:
                    sent.clear()
                    broker = cluster.restart(1)
                    broker.schemas = None
    cluster.pass_ms(40_000)
    assert not any(one.waits for one in sent) and not broker.node.schemas.waiting
    for partition in range(2):
        found = values(fetch(broker, partitions=(partition,)).records)
        assert {int.from_bytes(value[1:5], "big") for value in found if value is not None} <= ever
    assert all(value is not None and value.startswith(framed(1)[:5]) for value in values(fetch(broker, topic="u").records))
    assert {answered(one).error_code for one in sent} <= {0, INVALID, LATER}
