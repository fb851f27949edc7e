"""A member of a group that is kafka-python."""

from __future__ import annotations

import time

from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError
from telling import RECORDS_PER_POLL, Leaving, called, tell, tell_read

import kafka

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class Told(kafka.ConsumerRebalanceListener):
    """Passes on what the client says."""

    def on_partitions_revoked(self, revoked: set[kafka.TopicPartition]) -> None:
        tell(revoked=[each.partition for each in revoked])

    def on_partitions_assigned(self, assigned: set[kafka.TopicPartition]) -> None:
        tell(assigned=[each.partition for each in assigned])


def main() -> None:
    call, leaving = called(), Leaving()
    settings = dict(call.settings)
    assignors = [ASSIGNORS[name] for name in settings.pop("partition.assignment.strategy", "range,roundrobin").split(",")]
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=call.bootstrap,
        group_id=call.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=RECORDS_PER_POLL,
        partition_assignment_strategy=assignors,
        **{name.replace(".", "_"): value for name, value in settings.items()},
    )
    consumer.subscribe([call.topic], listener=Told())
    while not leaving.asked:
        try:
            found = consumer.poll(200)
        except KafkaError as error:
            # It hands a refused connection to its caller now and then, where others try again themselves.
            if not error.retriable:
                raise
            time.sleep(0.1)
            continue
        if not found:
            continue
        tell_read((record.partition, record.offset) for records in found.values() for record in records)
        ends = {place: kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1) for place, records in found.items()}
        try:
            consumer.commit(ends)
        except KafkaError as error:
            tell(refused=str(error))
        else:
            tell(committed=[[place.partition, end.offset] for place, end in ends.items()])
    consumer.close()


main()
