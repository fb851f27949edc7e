"""A member of a group that is Ottla's own blocking consumer, of either protocol."""

from __future__ import annotations

from telling import RECORDS_PER_POLL, Leaving, called, tell, tell_read

import ottla
from ottla.errors import KafkaError


class Told(ottla.RebalanceListener):
    """Passes on what the client says."""

    def on_partitions_assigned(self, partitions: list[ottla.TopicPartition]) -> None:
        tell(assigned=[each.partition for each in partitions])

    def on_partitions_revoked(self, partitions: list[ottla.TopicPartition]) -> None:
        tell(revoked=[each.partition for each in partitions])


def main() -> None:
    call, leaving = called(), Leaving()
    settings = {name.replace(".", "_"): value for name, value in call.settings.items()}
    if settings.get("group_protocol") != "consumer":
        settings.setdefault("partition_assignment_strategy", "range,roundrobin")
        settings["partition_assignment_strategy"] = settings["partition_assignment_strategy"].split(",")
    consumer = ottla.Consumer(
        call.topic,
        listener=Told(),
        bootstrap_servers=call.bootstrap,
        group_id=call.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=RECORDS_PER_POLL,
        **settings,
    )
    while not leaving.asked:
        records = consumer.poll(200)
        if not records:
            continue
        tell_read((record.partition, record.offset) for record in records)
        ends = {ottla.TopicPartition(call.topic, record.partition): record.offset + 1 for record in records}
        try:
            consumer.commit(ends)
        except KafkaError as error:
            tell(refused=repr(error))
        else:
            tell(committed=[[place.partition, end] for place, end in ends.items()])
    consumer.close()


main()
