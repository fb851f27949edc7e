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

    def assigned(_: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        emit(assigned=[each.partition for each in partitions])

    def revoked(_: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        emit(revoked=[each.partition for each in partitions])

    consumer.subscribe([arguments.topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not leave_signal.received:
        messages = [message for message in consumer.consume(RECORDS_PER_POLL, 0.2) if message.error() is None]
        if not messages:
            continue
        emit_read((message.partition(), message.offset()) for message in messages)
        ends = {message.partition(): message.offset() + 1 for message in messages}
        positions = [confluent_kafka.TopicPartition(arguments.topic, partition, offset) for partition, offset in ends.items()]
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
