"""Assignments as short texts, for the timeline: ``orders 0-3 7, payments 1``."""

from collections.abc import Iterable, Mapping

from ottla.base.ids import TopicId, topic_id_text
from ottla.base.readable import ranges_text
from ottla.broker.metadata.image import Image
from ottla.broker.timeline import TEXT_MAX
from ottla.wire.declare import MalformedMessage
from ottla.wire.messages.consumer_protocol import ConsumerProtocolAssignment, decode_embedded


def assignment_text(by_topic: Mapping[str, Iterable[int]]) -> str:
    """At most ``TEXT_MAX`` characters."""
    text = ""
    for topic in sorted(by_topic):
        text += f"{', ' if text else ''}{topic} {ranges_text(sorted(by_topic[topic]), ' ')}"
        if len(text) > TEXT_MAX:
            return text[: TEXT_MAX - 3] + "..."
    return text


def embedded_text(data: bytes) -> str:
    """The assignment in a SyncGroup of consumers; empty if it is in another format."""
    try:
        found = decode_embedded(ConsumerProtocolAssignment, data).assigned_partitions if data else []
    except MalformedMessage:
        return ""
    return assignment_text({one.topic: one.partitions for one in found})


def by_id_text(image: Image, by_id: Mapping[bytes, Iterable[int]]) -> str:
    """An assignment with topic ids."""
    names: dict[str, Iterable[int]] = {}
    for topic_id, partitions in by_id.items():
        topic = image.topics_by_id.get(TopicId(topic_id))
        names[topic_id_text(topic_id) if topic is None else topic.name] = partitions
    return assignment_text(names)
