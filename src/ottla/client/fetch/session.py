"""The client's side of a fetch session: after a full request only changes are sent, and the broker returns only partitions with news
(KIP-227).

    epoch 0    a full request for a new session (closes the session that it names)
    epoch n    changes since n - 1: added, changed and forgotten partitions; 1 follows 2147483647
    id 0       the response of a broker without room for a session: the next request is full again
    epoch -1   without a session

A full request recovers from every error; the session has no state that the fetcher does not have too.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.base.ids import TopicPartition

SESSION_NOT_FOUND = 70
EPOCH_LAST = 2**31 - 1


class PartitionFetch(NamedTuple):
    """The fetch state of one partition; equal states are not sent again."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    bytes_max: int


class SessionRequest(NamedTuple):
    """The session part of a fetch request."""

    session_id: int
    epoch: int
    send: dict[TopicPartition, PartitionFetch]
    #: With the topic id known to the broker.
    forget: list[tuple[TopicPartition, bytes]]


class FetchSession:
    """A session with one broker. Requests do not overlap: `answered` or `failed` follows each `request`."""

    __slots__ = ("_by_id", "_epoch", "_held", "_id")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        #: Partitions in the broker's session, as of the last request.
        self._held: dict[TopicPartition, PartitionFetch] = {}
        self._by_id = False

    def request(self, wanted: dict[TopicPartition, PartitionFetch], *, by_id: bool) -> SessionRequest:
        """The request after which the broker has exactly `wanted`, in this order if it is full."""
        if by_id != self._by_id:
            # A session uses topic names or ids, never both.
            self._by_id, self._epoch = by_id, 0
        if self._epoch == 0:
            self._held = dict(wanted)
            return SessionRequest(self._id, 0, dict(wanted), [])
        held = self._held
        send = {tp: ask for tp, ask in wanted.items() if held.get(tp) != ask}
        forget = [(tp, ask.topic_id) for tp, ask in held.items() if tp not in wanted or wanted[tp].topic_id != ask.topic_id]
        self._held = dict(wanted)
        return SessionRequest(self._id, self._epoch, send, forget)

    def answered(self, error_code: int, session_id: int) -> None:
        """The broker answered: 0 or the error of the request, and the session id."""
        if error_code == SESSION_NOT_FOUND:
            self._id = self._epoch = 0
        elif error_code:
            self._epoch = 0
        elif session_id == 0:
            self._id = self._epoch = 0
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == EPOCH_LAST else self._epoch + 1

    def failed(self) -> None:
        """No response: the broker's session state is unknown."""
        self._epoch = 0
