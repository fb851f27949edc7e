"""The client's half of a fetch session: after one whole request, only what changed is sent, and the broker answers only what has news
(KIP-227).

    epoch 0    a whole request, which asks for a session (and drops the one whose id it names)
    epoch n    changes since n - 1: new or changed partitions, and those to forget; after 2147483647 comes 1
    id 0       what a broker without room for another session answers: the next request is whole again
    epoch -1   no session wanted

Whatever goes wrong, a whole request makes it right again; nothing about positions is kept here that the fetcher does not know too.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.base.ids import TopicPartition

SESSION_NOT_FOUND = 70
EPOCH_LAST = 2**31 - 1


class Ask(NamedTuple):
    """What is asked of one partition; equal asks need not be sent twice."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    bytes_max: int


class SessionRequest(NamedTuple):
    """The part of a fetch request that the session decides."""

    session_id: int
    epoch: int
    send: dict[TopicPartition, Ask]
    #: With the id under which the broker knows the topic.
    forget: list[tuple[TopicPartition, bytes]]


class FetchSession:
    """One session with one broker. Requests do not overlap: each `request` is followed by `answered` or `failed`."""

    __slots__ = ("_by_id", "_epoch", "_held", "_id")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        #: What the broker holds, as of the last request.
        self._held: dict[TopicPartition, Ask] = {}
        self._by_id = False

    def request(self, wanted: dict[TopicPartition, Ask], *, by_id: bool) -> SessionRequest:
        """What to send so that the broker considers exactly `wanted`, in this order when the request is whole."""
        if by_id != self._by_id:
            # A session names topics or gives their ids, never both.
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
        """The broker answered the last request as a whole: 0 or the error, and the session's id."""
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
        """No answer came; what the broker made of the request is not known."""
        self._epoch = 0
