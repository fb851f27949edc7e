"""Compares an imported data directory with the Kafka directories: offsets, bytes and checksums of batches, and groups.

Every batch of the source from the log start offset on must be in the target, with the same bytes and a valid checksum. What the target has
behind them is counted: Ottla may have served meanwhile. A log that Ottla compacted since cannot be compared, so the verification is
refused: verify before the first start. Logs that retention shortened, and groups that committed since, are reported as differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ottla.base.ids import TopicPartition
from ottla.log import filenames
from ottla.records.batch import BatchHeader
from ottla.server.data_directory import STORE
from ottla.server.kafka_import.groups import TOPIC as OFFSETS_TOPIC
from ottla.server.kafka_import.groups import read_groups
from ottla.server.kafka_import.kafka_metadata import CannotImport
from ottla.server.kafka_import.plan import ImportPlan
from ottla.server.kafka_import.source import SourceDirectory, SourceLog, read_logs
from ottla.store import layout
from ottla.store.embedded.copies import read_store
from ottla.store.embedded.file import StoreFileError

#: Logs named in an error.
_SHOWN = 5


@dataclass(slots=True)
class ImportVerification:
    """The outcome: differences, the first ones of each log only."""

    logs: int = 0
    batches: int = 0
    read_bytes: int = 0
    #: Records behind the end of the source.
    further_records: int = 0
    groups: int = 0
    offsets: int = 0
    #: (what, difference).
    differences: list[tuple[str, str]] = field(default_factory=list)


def verify(plan: ImportPlan, data_dir: Path, *, progress: Callable[[int], None]) -> ImportVerification:
    """Raises: CannotImport, OSError."""
    try:
        contents = read_store(data_dir / STORE)
    except StoreFileError as error:
        raise CannotImport(str(error)) from None
    if contents is None:
        raise CannotImport(f"{data_dir} has no store; name the data directory of an import with --data-dir")
    found = ImportVerification()
    targets = {broker: target_directory(data_dir / f"broker-{broker}", broker) for broker in plan.brokers.values()}
    _refuse_compacted(plan, targets)
    cluster = contents.rows.get(layout.CLUSTER_ID, (b"", 0, 0))[0]
    if not cluster or layout.decode_cluster_id(cluster) != plan.cluster_id:
        found.differences.append(("cluster id", f"it is not {plan.cluster_id}"))
    _compare_topics(plan, {path: data for path, (data, _, _) in contents.rows.items()}, found)
    leaders: dict[TopicPartition, SourceLog] = {}
    for planned in plan.logs:
        here = planned.source.partition
        target = targets[planned.broker].logs.get(here)
        name = f"{here} of broker {planned.broker}"
        if target is None:
            found.differences.append((name, "there is no log"))
            continue
        found.logs += 1
        _compare_log(name, planned.source, target, found, progress)
        state = contents.rows.get(layout.partition_state(*here))
        if here.topic == OFFSETS_TOPIC and state is not None and layout.decode_partition_state(state[0]).leader == planned.broker:
            leaders[here] = target
    _compare_groups(plan, leaders, found)
    return found


def _refuse_compacted(plan: ImportPlan, targets: Mapping[int, SourceDirectory]) -> None:
    """Raises: CannotImport if a log was compacted since the import."""
    compacted = []
    for planned in plan.logs:
        target = targets[planned.broker].logs.get(planned.source.partition)
        if target is not None and (target.cleaned or 0) > (planned.source.cleaned or 0):
            compacted.append(f"{planned.source.partition} of broker {planned.broker}")
    if compacted:
        some = ", ".join(compacted[:_SHOWN]) + (", ..." if len(compacted) > _SHOWN else "")
        raise CannotImport(
            f"{len(compacted)} logs were compacted since the import and cannot be compared with their source: {some}; verify an import"
            " before the first start"
        )


def target_directory(path: Path, broker: int) -> SourceDirectory:
    """A log directory of Ottla, to compare. Raises: OSError."""
    directory = SourceDirectory(path, broker, None, kraft=False, clean=(path / filenames.CLEAN_SHUTDOWN).exists())
    read_logs(directory)
    return directory


def _compare_topics(plan: ImportPlan, rows: dict[str, bytes], found: ImportVerification) -> None:
    for path, (data, _, _) in plan.contents.rows.items():
        name = layout.topic_of(path)
        if name is None:
            continue
        if path not in rows:
            found.differences.append((f"topic {name}", "it does not exist"))
            continue
        expected, actual = layout.decode_topic(data), layout.decode_topic(rows[path])
        source = plan.metadata.topics[name].topic_id
        if any(source) and actual.topic_id != source:
            found.differences.append((f"topic {name}", "its id is another one"))
        if set(expected.replicas) - set(actual.replicas):
            found.differences.append((f"topic {name}", "partitions are missing"))


def _compare_log(name: str, source: SourceLog, target: SourceLog, found: ImportVerification, progress: Callable[[int], None]) -> None:
    first = source.first_offset
    if target.first_offset != first:
        found.differences.append((name, f"it starts at offset {target.first_offset}, and at {first} in Kafka"))
        first = max(first, target.first_offset)
    theirs = _batches(target, first)
    for header, batch in _batches(source, first):
        other = next(theirs, None)
        if other is None or bytes(other[1]) != bytes(batch):
            where = "it ends there, or the next batch is damaged" if other is None else "the batch differs"
            found.differences.append((name, f"at offset {header.base_offset}: {where}"))
            return
        found.batches += 1
        found.read_bytes += header.size
        progress(found.read_bytes)
    further = target.end_offset - source.end_offset
    found.further_records += max(further, 0)
    if further < 0 and source.clean:
        found.differences.append((name, f"it ends at offset {target.end_offset}, and at {source.end_offset} in Kafka"))


def _batches(log: SourceLog, first: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches that have records at or above an offset."""
    for number, base in enumerate(log.bases):
        if number + 1 < len(log.bases) and log.bases[number + 1] <= first:
            continue
        for _, header, batch in log.batches(base):
            if header.last_offset >= first:
                yield header, batch


def _compare_groups(plan: ImportPlan, leaders: dict[TopicPartition, SourceLog], found: ImportVerification) -> None:
    target = read_groups(log for _, log in sorted(leaders.items()))
    found.groups, found.offsets = plan.groups.groups, plan.groups.offsets
    expected, actual = plan.groups.known(), target.known()
    differing = [key for key, value in expected.items() if actual.get(key) != value]
    if differing:
        found.differences.append((OFFSETS_TOPIC, f"{len(differing)} of {len(expected)} records of groups differ"))
    more = len(actual.keys() - expected.keys())
    if more:
        found.differences.append((OFFSETS_TOPIC, f"there are {more} further records of groups"))
