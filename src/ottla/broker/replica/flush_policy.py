"""When the log of a replica is flushed: at once, or, under write caching, when flush.ms or flush.messages asks for it."""

from ottla.log.log import Log
from ottla.log.options import TopicOptions


class Flushing:
    """What leaders and followers share. Whoever is one sets all of these when it is made."""

    __slots__ = ("_flush_wanted", "_unflushed_since_ms", "caching", "log", "options")

    log: Log
    options: TopicOptions
    #: Whether the topic takes what is in the page cache for durable.
    caching: bool
    _flush_wanted: bool
    _unflushed_since_ms: int | None

    def wants_flush(self) -> bool:
        """Whether to begin a flush if there is anything to flush. Under write caching records alone are no reason for one."""
        return not self.caching or self._flush_wanted or self.log.pending.any or self.log.epochs.dirty

    def flush_due(self, now_ms: int) -> bool:
        """Under write caching: whether flush.ms or flush.messages asks for a flush; notes that one is wanted."""
        unflushed = self.log.end_offset - self.log.recovery_point
        if unflushed == 0:
            self._unflushed_since_ms = None
        elif self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        old = self._unflushed_since_ms is not None and now_ms - self._unflushed_since_ms >= self.options.flush_ms
        self._flush_wanted = unflushed >= self.options.flush_messages or old
        return self._flush_wanted
