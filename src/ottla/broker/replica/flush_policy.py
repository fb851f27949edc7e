"""When a replica's log is flushed: at once, or with write caching when flush.ms or flush.messages requires it."""

from ottla.log.log import Log
from ottla.log.options import TopicOptions


class Flushing:
    """Flush policy of leaders and followers, which set these attributes."""

    __slots__ = ("_flush_wanted", "_unflushed_since_ms", "caching", "log", "options")

    log: Log
    options: TopicOptions
    #: Whether the page cache counts as durable for this topic.
    caching: bool
    _flush_wanted: bool
    _unflushed_since_ms: int | None

    def wants_flush(self) -> bool:
        """Whether to start a flush if there is data to flush. With write caching, records alone are no reason."""
        return not self.caching or self._flush_wanted or self.log.pending.any or self.log.epochs.dirty

    def flush_due(self, now_ms: int) -> bool:
        """With write caching: whether flush.ms or flush.messages requires a flush; remembers it."""
        unflushed = self.log.end_offset - self.log.recovery_point
        if unflushed == 0:
            self._unflushed_since_ms = None
        elif self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        old = self._unflushed_since_ms is not None and now_ms - self._unflushed_since_ms >= self.options.flush_ms
        self._flush_wanted = unflushed >= self.options.flush_messages or old
        return self._flush_wanted
