"""Finds the topics that match a pattern that this client evaluates, again when metadata is old."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ottla.client.options import ConsumerOptions
from ottla.client.transport.network import METADATA_VERSION_MIN, Network
from ottla.wire.errors import KafkaError
from ottla.wire.messages import MetadataRequest


class MatchingTopics:
    """Lists all topics every `metadata_max_age_ms`; `found` gets the names that match, and `changed` is called after it."""

    def __init__(
        self, network: Network, options: ConsumerOptions, pattern: re.Pattern[str], found: Callable[[Iterable[str]], None],
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._network = network
        self._options = options
        self._pattern = pattern
        self._found = found
        self._changed = changed
        self._listing = False
        self._due_ms = float("-inf")
        self._stopped = False

    def stop(self) -> None:
        """Ends the search: a listing under way is ignored."""
        self._stopped = True

    def pump(self, now_ms: float) -> float:
        """Lists the topics if that is due; returns the time of the next call."""
        if not self._listing and now_ms >= self._due_ms:
            self._listing = True
            self._network.spawn(self._list())
        return float("inf") if self._listing else self._due_ms

    async def _list(self) -> None:
        network, options = self._network, self._options
        try:
            request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            response = await network.ask_any(request, at_least=METADATA_VERSION_MIN)
        except KafkaError:
            self._due_ms = network.clock_ms() + options.retry_backoff_max_ms
        else:
            self._due_ms = network.clock_ms() + options.metadata_max_age_ms
            if not self._stopped:
                hidden = options.exclude_internal_topics
                names = [topic.name for topic in response.topics if topic.name and not (topic.is_internal and hidden)]
                self._found(name for name in names if self._pattern.fullmatch(name))
        finally:
            self._listing = False
            self._changed()
