"""A group member that uses aiokafka."""

from __future__ import annotations

import asyncio

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError
from member_output import RECORDS_PER_POLL, LeaveSignal, emit, emit_read, member_arguments

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class EmittingListener(aiokafka.ConsumerRebalanceListener):
    """Emits the callbacks of the client."""

    async def on_partitions_revoked(self, revoked: set[aiokafka.TopicPartition]) -> None:
        emit(revoked=[each.partition for each in revoked])

    async def on_partitions_assigned(self, assigned: set[aiokafka.TopicPartition]) -> None:
        emit(assigned=[each.partition for each in assigned])


async def main() -> None:
    arguments, leave_signal = member_arguments(), LeaveSignal()
    settings = dict(arguments.settings)
    assignors = [ASSIGNORS[name] for name in settings.pop("partition.assignment.strategy", "range,roundrobin").split(",")]
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=arguments.bootstrap,
        group_id=arguments.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=assignors,
        **{name.replace(".", "_"): value for name, value in settings.items()},
    )
    consumer.subscribe([arguments.topic], listener=EmittingListener())
    await consumer.start()
    while not leave_signal.received:
        found = await consumer.getmany(timeout_ms=200, max_records=RECORDS_PER_POLL)
        if not found:
            continue
        emit_read((record.partition, record.offset) for records in found.values() for record in records)
        ends = {place: records[-1].offset + 1 for place, records in found.items()}
        try:
            await consumer.commit(ends)
        except KafkaError as error:
            emit(refused=str(error))
        else:
            emit(committed=[[place.partition, offset] for place, offset in ends.items()])
    await consumer.stop()


asyncio.run(main())
