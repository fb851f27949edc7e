"""A member of a group that is aiokafka."""

from __future__ import annotations

import asyncio

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError
from telling import RECORDS_PER_POLL, Leaving, called, tell, tell_read

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class Told(aiokafka.ConsumerRebalanceListener):
    """Passes on what the client says."""

    async def on_partitions_revoked(self, revoked: set[aiokafka.TopicPartition]) -> None:
        tell(revoked=[each.partition for each in revoked])

    async def on_partitions_assigned(self, assigned: set[aiokafka.TopicPartition]) -> None:
        tell(assigned=[each.partition for each in assigned])


async def main() -> None:
    call, leaving = called(), Leaving()
    settings = dict(call.settings)
    assignors = [ASSIGNORS[name] for name in settings.pop("partition.assignment.strategy", "range,roundrobin").split(",")]
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=call.bootstrap,
        group_id=call.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=assignors,
        **{name.replace(".", "_"): value for name, value in settings.items()},
    )
    consumer.subscribe([call.topic], listener=Told())
    await consumer.start()
    while not leaving.asked:
        found = await consumer.getmany(timeout_ms=200, max_records=RECORDS_PER_POLL)
        if not found:
            continue
        tell_read((record.partition, record.offset) for records in found.values() for record in records)
        ends = {place: records[-1].offset + 1 for place, records in found.items()}
        try:
            await consumer.commit(ends)
        except KafkaError as error:
            tell(refused=str(error))
        else:
            tell(committed=[[place.partition, offset] for place, offset in ends.items()])
    await consumer.stop()


asyncio.run(main())
