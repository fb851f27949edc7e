"""A member of a group that is confluent-kafka, of the classic protocol or (group.protocol=consumer) the new one."""

from __future__ import annotations

import confluent_kafka
from telling import RECORDS_PER_POLL, Leaving, called, tell, tell_read


def main() -> None:
    call, leaving = called(), Leaving()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": call.bootstrap,
            "group.id": call.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **call.settings,
        }
    )

    def assigned(_: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        tell(assigned=[each.partition for each in partitions])

    def revoked(_: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        tell(revoked=[each.partition for each in partitions])

    consumer.subscribe([call.topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not leaving.asked:
        messages = [message for message in consumer.consume(RECORDS_PER_POLL, 0.2) if message.error() is None]
        if not messages:
            continue
        tell_read((message.partition(), message.offset()) for message in messages)
        ends = {message.partition(): message.offset() + 1 for message in messages}
        positions = [confluent_kafka.TopicPartition(call.topic, partition, offset) for partition, offset in ends.items()]
        try:
            done = consumer.commit(offsets=positions, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            tell(refused=str(error))
        else:
            tell(committed=[[each.partition, each.offset] for each in done if each.error is None])
            for each in done:
                if each.error is not None:
                    tell(refused=str(each.error))
    consumer.close()


main()
