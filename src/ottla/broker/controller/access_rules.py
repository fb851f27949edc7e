"""Operations of the controller that write access rules to the store, in Kafka's layout.

The rules of a pattern are one node, written as a whole with its version. Each change also adds a notification for Kafka's brokers, which
read those with a higher number than the last one that they read. The newest stay: their numbers continue, and a slow broker finds them.
"""

from collections.abc import Iterable

from ottla.base.acls import Entry, Pattern, PatternType
from ottla.base.ports import Op, StoreResult
from ottla.broker.controller.fenced_writes import FencedWrites
from ottla.broker.metadata.image import Image
from ottla.store import layout

#: Notifications of a kind that stay in the store; Kafka's brokers read them within milliseconds.
NOTIFICATIONS_MAX = 100
#: Old notifications that are deleted at a time.
DELETIONS_MAX = 200


class AccessRules:
    """Plans changes of rules."""

    def __init__(self, image: Image, writes: FencedWrites) -> None:
        self._image = image
        self._writes = writes
        #: Whether old notifications are being deleted.
        self._deleting = False
        #: The last numbers of notifications that were given out here: several writes are in flight at a time.
        self._given: dict[PatternType, int] = {}

    def rewritten(self, pattern: Pattern, entries: Iterable[Entry]) -> list[Op]:
        """Replaces the rules of a pattern; no operations if they are the same."""
        image, after = self._image, tuple(dict.fromkeys(entries))
        if set(after) == set(image.acls.get(pattern, ())):
            return []
        path = layout.acl(pattern)
        version = image.versions.get(path)
        if version is None:
            change = Op("create", path, layout.encode_acls(after))
        elif after:
            change = Op("set", path, layout.encode_acls(after), version=version)
        else:
            change = Op("delete", path, version=version)
        kind, numbers = pattern.pattern_type, image.acl_changes[pattern.pattern_type]
        number = self._given[kind] = max(self._given.get(kind, -1), numbers[-1] if numbers else -1) + 1
        notified = Op("create", layout.acl_change(kind, number), layout.encode_acl_change(pattern))
        return [change, notified]

    def tick(self) -> None:
        """Deletes old notifications."""
        for kind, numbers in self._image.acl_changes.items():
            old = numbers[: max(len(numbers) - NOTIFICATIONS_MAX, 0)][:DELETIONS_MAX]
            if old and not self._deleting:
                self._deleting = True
                self._writes.write([Op("delete", layout.acl_change(kind, each)) for each in old], self._deleted)

    def _deleted(self, result: StoreResult) -> None:
        # After an error the next tick tries again.
        self._deleting = False
