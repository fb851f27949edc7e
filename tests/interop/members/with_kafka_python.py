"""A group member that uses kafka-python."""

from __future__ import annotations

import logging
import time

from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError
from member_output import RECORDS_PER_POLL, LeaveSignal, emit, emit_read, member_arguments

import kafka

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class EmittingListener(kafka.ConsumerRebalanceListener):
    """Emits the callbacks of the client."""

    def on_partitions_revoked(self, revoked: set[kafka.TopicPartition]) -> None:
        emit(revoked=[each.partition for each in revoked])

    def on_partitions_assigned(self, assigned: set[kafka.TopicPartition]) -> None:
        emit(assigned=[each.partition for each in assigned])


def main() -> None:
    arguments, leave_signal = member_arguments(), LeaveSignal()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    settings = dict(arguments.settings)
    assignors = [ASSIGNORS[name] for name in settings.pop("partition.assignment.strategy", "range,roundrobin").split(",")]
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=arguments.bootstrap,
        group_id=arguments.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=RECORDS_PER_POLL,
        partition_assignment_strategy=assignors,
        **{name.replace(".", "_"): value for name, value in settings.items()},
    )
    consumer.subscribe([arguments.topic], listener=EmittingListener())
    while not leave_signal.received:
        try:
            # As in client_adapters.KAFKA_PYTHON_POLL_MS: a poll that ends within the second join leaves the member without partitions.
            found = consumer.poll(2_000)
        except KafkaError as error:
            # It occasionally raises a refused connection, where other clients retry.
            if not error.retriable:
                raise
            time.sleep(0.1)
            continue
        if not found:
            continue
        emit_read((record.partition, record.offset) for records in found.values() for record in records)
        ends = {place: kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1) for place, records in found.items()}
        try:
            consumer.commit(ends)
        except KafkaError as error:
            emit(refused=str(error))
        else:
            emit(committed=[[place.partition, end.offset] for place, end in ends.items()])
    consumer.close()


main()
