"""Changes of a log, apart from batches, that are not durable yet: names, index files, snapshots, small files.

Each change has a stamp. A plan has the stamp of its creation: after it was performed, changes up to that stamp are durable, and later ones
belong to the next plan. A dropped plan has no effect: the next one contains the same changes.
"""

from ottla.base.ids import Offset, TopicId
from ottla.base.ports import File
from ottla.log import checkpoints
from ottla.log.filenames import LEADER_EPOCHS, PARTITION_METADATA
from ottla.log.flush import FlushPlan, NamedFile
from ottla.log.leader_epochs import LeaderEpochs
from ottla.log.segment import Segment


class UnflushedChanges:
    __slots__ = (
        "_directories",
        "_epochs_postponed",
        "_epochs_version",
        "_files",
        "_plan",
        "_plan_stamp",
        "_postponed",
        "_rolled",
        "_stamp",
        "metadata",
        "unwritten",
    )

    def __init__(self) -> None:
        self._stamp = 0
        self._files: list[tuple[int, File | NamedFile]] = []
        self._directories: dict[str, int] = {}
        #: Closed segments with index files to sync: (stamp, end offset, segment).
        self._rolled: list[tuple[int, Offset, Segment]] = []
        #: Closed segments whose indexes a full disk refused.
        self.unwritten: list[Segment] = []
        #: A topic id that is not in partition.metadata yet.
        self.metadata: TopicId | None = None
        self._plan: FlushPlan | None = None
        self._plan_stamp = 0
        self._epochs_version = 0
        #: Whether a full disk refused a file of the last plan, and the version of the epoch table that it refused.
        self._postponed = False
        self._epochs_postponed = -1

    @property
    def any(self) -> bool:
        """Whether anything but records and epochs needs a flush. Files that a full disk refused do not cause a flush by themselves."""
        if self._files or self._directories:
            return True
        if self.metadata is not None and not self._postponed:
            return True
        return bool(self._rolled) and any(segment not in self.unwritten for _, _, segment in self._rolled)

    @property
    def names(self) -> bool:
        """Whether created or renamed files may not be durable."""
        return bool(self._directories)

    def needs_flush(self, epochs: LeaderEpochs) -> bool:
        """Whether a flush is needed without new records."""
        return self.any or (epochs.dirty and epochs.version != self._epochs_postponed)

    def file(self, file: File | NamedFile) -> None:
        """Adds a file to sync."""
        self._stamp += 1
        self._files.append((self._stamp, file))

    def directory(self, path: str) -> None:
        """Adds a directory in which a name was created or changed."""
        self._stamp += 1
        self._directories[path] = self._stamp

    def rolled(self, segment: Segment, end_offset: Offset) -> None:
        """Adds a closed segment; its index files are complete."""
        self._stamp += 1
        self._rolled.append((self._stamp, end_offset, segment))

    def holds(self, segment: Segment) -> bool:
        """Whether the name of the segment after this closed one may not be durable yet."""
        return any(entry[2] is segment for entry in self._rolled)

    def forget(self, segment: Segment) -> None:
        """Drops a removed segment."""
        self._rolled = [entry for entry in self._rolled if entry[2] is not segment]
        if segment in self.unwritten:
            self.unwritten.remove(segment)

    def bound(self, recovery_point: Offset, epochs: LeaderEpochs) -> Offset:
        """The recovery point, lowered so that recovery rebuilds the pending changes."""
        if epochs.unsaved_from is not None:
            recovery_point = min(recovery_point, epochs.unsaved_from)
        return min(recovery_point, self._rolled[0][1]) if self._rolled else recovery_point

    def plan(self, upto: Offset, logs: list[File], directory: str, epochs: LeaderEpochs) -> FlushPlan:
        """The plan for all changes up to now."""
        self.unwritten = [segment for segment in self.unwritten if not segment.finish()]
        files: dict[str, File | NamedFile] = {file.path: file for file in logs}
        files.update((file.path, file) for _, file in self._files)
        for _, _, segment in self._rolled:
            if segment not in self.unwritten:
                files.update((file.path, file) for file in segment.index_files())
        replacements = []
        if epochs.dirty:
            replacements.append((f"{directory}/{LEADER_EPOCHS}", epochs.file()))
        if self.metadata is not None:
            replacements.append((f"{directory}/{PARTITION_METADATA}", checkpoints.partition_metadata_file(self.metadata)))
        self._plan = FlushPlan(upto, tuple(files.values()), tuple(self._directories), tuple(replacements))
        self._plan_stamp = self._stamp
        self._epochs_version = epochs.version
        return self._plan

    def void(self) -> None:
        """The log was truncated: the current plan is no longer valid for its bytes."""
        self._plan = None

    def done(self, upto: int, epochs: LeaderEpochs) -> None:
        """The last plan was performed, if it covers this offset."""
        plan = self._plan
        if plan is None or plan.upto > upto:
            return
        self._plan = None
        stamp = self._plan_stamp
        self._files = [entry for entry in self._files if entry[0] > stamp]
        self._directories = {path: at for path, at in self._directories.items() if at > stamp}
        self._rolled = [entry for entry in self._rolled if entry[0] > stamp or entry[2] in self.unwritten]
        self._postponed = bool(plan.postponed)
        for path, _ in plan.replacements:
            if path in plan.postponed:
                self._epochs_postponed = self._epochs_version
            elif path.endswith(LEADER_EPOCHS):
                epochs.saved(self._epochs_version)
            else:
                self.metadata = None
