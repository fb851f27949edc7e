"""A group member that uses confluent-kafka, with the classic protocol or (group.protocol=consumer) the consumer protocol."""

from __future__ import annotations

import confluent_kafka
from member_output import RECORDS_PER_POLL, LeaveSignal, emit, emit_read, member_arguments


def main() -> None:
    arguments, leave_signal = member_arguments(), LeaveSignal()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **arguments.settings,
        }
    )

    #: The position to commit of each partition.
    ends: dict[int, int] = {}

    def assigned(_: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        emit(assigned=[each.partition for each in partitions])

    def revoked(_: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        emit(revoked=[each.partition for each in partitions])
        # They may be assigned again before the commit, and are then read from the committed offset.
        for each in partitions:
            ends.pop(each.partition, None)

    consumer.subscribe([arguments.topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not leave_signal.received:
        # Not `consume`: if a rebalance happens during the call, it also returns records fetched before the rebalance.
        for number in range(RECORDS_PER_POLL):
            message = consumer.poll(0.0 if number else 0.2)
            if message is None:
                break
            if message.error() is None:
                emit_read([(message.partition(), message.offset())])
                ends[message.partition()] = message.offset() + 1
        if not ends:
            continue
        positions = [confluent_kafka.TopicPartition(arguments.topic, partition, offset) for partition, offset in ends.items()]
        ends.clear()
        try:
            done = consumer.commit(offsets=positions, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            emit(refused=str(error))
        else:
            emit(committed=[[each.partition, each.offset] for each in done if each.error is None])
            for each in done:
                if each.error is not None:
                    emit(refused=str(each.error))
    consumer.close()


main()
