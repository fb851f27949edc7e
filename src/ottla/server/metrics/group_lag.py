"""The lag of groups: in records, and in time.

The lag in records needs the high watermark of partitions that other brokers may lead. Brokers of this process, and followers here, have it;
for the others ``RemoteEnds`` asks the leaders, in one request per broker.

The lag in time is the time since the high watermark passed the committed offset. ``LagClock`` notes high watermarks every ``SAMPLE_S``::

    12:00:00  100      a committed offset of 110 was passed between 12:00:10 and 12:00:20: about 12:00:15,
    12:00:10  105      interpolated; at 12:00:30 the lag is 15 s
    12:00:20  115

When a partition has ``SAMPLES_MAX`` samples, every second one is dropped: old lags are known less exactly. A lag that is older than the
first sample is the time since that sample.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ottla.base.ids import BrokerId, TopicPartition
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic

SAMPLE_S = 10.0
SAMPLES_MAX = 64
#: Partitions in one request: half a millisecond of the event loop; and the time between two requests.
ASKED_MAX = 500
REQUESTS_APART_S = 0.02
LATEST_OFFSET = -1
VERSION = 7
NO_REPLICA = -1


class LagClock:
    """High watermarks of partitions with committed offsets, now and earlier. Belongs to the thread of the collection."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._ends: dict[TopicPartition, int] = {}
        #: Times and high watermarks, both ascending.
        self._samples: dict[TopicPartition, tuple[list[float], list[int]]] = {}

    def note(self, ends: Mapping[TopicPartition, int]) -> None:
        """Adds a sample; partitions that are absent are forgotten."""
        now_s = self._now_s()
        self._ends = dict(ends)
        for partition in [gone for gone in self._samples if gone not in ends]:
            del self._samples[partition]
        for partition, end in ends.items():
            times, marks = self._samples.setdefault(partition, ([], []))
            if marks and end < marks[-1]:
                # The topic was deleted and created again, or records were lost.
                times.clear()
                marks.clear()
            if len(marks) >= 2 and marks[-2] == end:
                # Nothing was produced: the last two samples bound the same offset.
                times[-1] = now_s
                continue
            times.append(now_s)
            marks.append(end)
            if len(marks) > SAMPLES_MAX:
                del times[1:-1:2], marks[1:-1:2]

    def end(self, partition: TopicPartition) -> int | None:
        """The last known high watermark."""
        return self._ends.get(partition)

    def seconds(self, partition: TopicPartition, offset: int) -> float:
        """Time since the high watermark passed the offset; 0 if it has not."""
        times, marks = self._samples.get(partition, ([], []))
        if not marks or offset >= marks[-1]:
            return 0.0
        # The first sample above the offset.
        place = bisect_right(marks, offset)
        if place == 0:
            return self._now_s() - times[0]
        below, above = marks[place - 1], marks[place]
        passed_s = times[place - 1] + (times[place] - times[place - 1]) * (offset - below) / (above - below)
        return max(self._now_s() - passed_s, 0.0)


class RemoteEnds:
    """High watermarks of partitions that are not on this process, as their leaders report them."""

    def __init__(
        self, send: Callable[[BrokerId, Any, int, Callable[[Any], None]], None], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """``send``: has the event loop send a request to another broker; its callback runs on the loop."""
        self._send = send
        self._sleep = sleep
        self.ends: dict[TopicPartition, int] = {}

    def ask(self, wanted: Mapping[TopicPartition, BrokerId]) -> None:
        """Asks the leaders of these partitions, and forgets the others. Runs in the thread, with pauses between requests."""
        by_leader: dict[BrokerId, list[TopicPartition]] = {}
        for partition, leader in wanted.items():
            by_leader.setdefault(leader, []).append(partition)
        for partition in [gone for gone in list(self.ends) if gone not in wanted]:
            self.ends.pop(partition, None)
        for leader, partitions in by_leader.items():
            for first in range(0, len(partitions), ASKED_MAX):
                self._send(leader, request_of(partitions[first : first + ASKED_MAX]), VERSION, self._answered)
                self._sleep(REQUESTS_APART_S)

    def _answered(self, response: Any) -> None:
        if not isinstance(response, ListOffsetsResponse):
            return
        for topic in response.topics:
            for found in topic.partitions:
                if not found.error_code:
                    self.ends[TopicPartition(topic.name, found.partition_index)] = found.offset


def request_of(partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
    """Asks for the high watermarks of partitions of one leader."""
    topics: dict[str, ListOffsetsTopic] = {}
    for topic, partition in partitions:
        named = topics.setdefault(topic, ListOffsetsTopic(name=topic, partitions=[]))
        named.partitions.append(ListOffsetsPartition(partition_index=partition, timestamp=LATEST_OFFSET))
    return ListOffsetsRequest(replica_id=NO_REPLICA, topics=list(topics.values()))
