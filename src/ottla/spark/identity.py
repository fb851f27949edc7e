"""Whether a topic is still the one that was read: names stay when a topic is deleted and created again, ids do not. Pure.

Spark's checkpoint has offsets by name alone, as that of its own Kafka source. Which ids they belong to a running query remembers; a query
that was restarted asks its consumer group, where it has left them with its progress (`progress_group`). Without either, and with brokers
that have no ids (before Kafka 2.8), a topic shows to be another one only by being shorter than what was read.
"""

from collections.abc import Mapping

from ottla.base.ids import TopicPartition


class TopicIdentity:
    """The ids of the topics that a stream has read."""

    def __init__(self) -> None:
        #: The id by which each topic went when the offsets were read that the next batch begins at.
        self.ids: dict[str, str] = {}
        #: The end of the batch that was planned last, and the ids of its topics.
        self._planned: tuple[dict[TopicPartition, int], dict[str, str]] | None = None
        #: Whether anything was remembered or compared.
        self.known = False

    def remember(self, ids: Mapping[str, str]) -> None:
        """Take over what is known from before."""
        self.ids.update(ids)
        self.known = True

    def compared(self, start: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> dict[str, str | None]:
        """By topic, now that a batch is to begin at `start`: None for one that is still the same, else what its id was and is, in words.
        Topics that nobody knows from before are left out.
        """
        self.known = True
        if self._planned is not None and self._planned[0] == start:
            self.ids.update(self._planned[1])
            self._planned = None
        found: dict[str, str | None] = {}
        for topic, now in ids.items():
            was = self.ids.get(topic)
            if was is None:
                self.ids[topic] = now
            else:
                found[topic] = None if was == now else f"(its id was {was} and is {now})"
        return found

    def planned(self, end: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> None:
        """A batch that ends at `end` reads topics of these ids."""
        self._planned = (dict(end), dict(ids))
