"""A group member that uses Ottla's blocking consumer, with either protocol."""

from __future__ import annotations

from member_output import RECORDS_PER_POLL, LeaveSignal, emit, emit_read, member_arguments

import ottla
from ottla.errors import KafkaError


class EmittingListener(ottla.RebalanceListener):
    """Emits the callbacks of the client."""

    def on_partitions_assigned(self, partitions: list[ottla.TopicPartition]) -> None:
        emit(assigned=[each.partition for each in partitions])

    def on_partitions_revoked(self, partitions: list[ottla.TopicPartition]) -> None:
        emit(revoked=[each.partition for each in partitions])


def main() -> None:
    arguments, leave_signal = member_arguments(), LeaveSignal()
    settings = {name.replace(".", "_"): value for name, value in arguments.settings.items()}
    if settings.get("group_protocol") != "consumer":
        settings.setdefault("partition_assignment_strategy", "range,roundrobin")
        settings["partition_assignment_strategy"] = settings["partition_assignment_strategy"].split(",")
    consumer = ottla.Consumer(
        arguments.topic,
        listener=EmittingListener(),
        bootstrap_servers=arguments.bootstrap,
        group_id=arguments.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=RECORDS_PER_POLL,
        **settings,
    )
    while not leave_signal.received:
        records = consumer.poll(200)
        if not records:
            continue
        emit_read((record.partition, record.offset) for record in records)
        ends = {ottla.TopicPartition(arguments.topic, record.partition): record.offset + 1 for record in records}
        try:
            consumer.commit(ends)
        except KafkaError as error:
            emit(refused=repr(error))
        else:
            emit(committed=[[place.partition, end] for place, end in ends.items()])
    consumer.close()


main()
