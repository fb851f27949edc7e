"""JSON lines: a value on each line, which is sent as it is written, to the last blank. Only what else is asked for is taken out of it.

Numbers keep all their digits that way, and fields that some records lack are not made up. Every line is checked, whether something is
taken out of it or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ottla.base.options import suggestion
from ottla.lake.load.inputs import CannotLoad
from ottla.lake.load.line_files import LineSource, blocks, lines_of, records
from ottla.lake.load.readers import WHOLE, ReadOptions, RejectedRow, RowBatch


class JsonReader:
    """See the module. The columns are those fields that are needed: texts as they are, others as JSON; and the whole line."""

    columns = None
    value: str | None = WHOLE
    skipped = 0

    def __init__(self, source: LineSource, how: ReadOptions) -> None:
        self._source, self._how = source, how
        self._as_dict = how.chosen is not None or bool(how.without)
        self._slots = [f"f{number}" for number in range(len(how.fields))]
        names = dict(zip(self._slots, how.fields, strict=True))
        row: Any = msgspec.Raw
        #: Takes fields that are texts in all rows; None where there are none, or some are something else.
        self._texts: msgspec.json.Decoder[Any] | None = None
        if self._as_dict:
            row = dict[str, msgspec.Raw]
        elif names:
            raw: list[Any] = [(slot, msgspec.Raw, msgspec.field(default=msgspec.Raw())) for slot in self._slots]
            row = msgspec.defstruct("Row", raw, rename=names.__getitem__, gc=False)
            texts: list[Any] = [(slot, str | None, None) for slot in self._slots]
            self._texts = msgspec.json.Decoder(msgspec.defstruct("Texts", texts, rename=names.__getitem__, gc=False))
        self._decoder = msgspec.json.Decoder(row)

    def portions(self, skip: int) -> Iterator[RowBatch]:
        first = True
        for number, block in blocks(self._source):
            found = self._quickly(block)
            rows = self._slowly(number, block) if found is None else RowBatch(found, [], self._source.done)
            if first and rows.bad and rows.bad[0].line == 1 and block.lstrip()[:1] in (b"[", b"{"):
                _check_lines(block)
            if first and rows.batch.num_rows:
                self._check_fields(rows.batch)
                first = False
            yield rows

    def _quickly(self, block: bytes) -> Any:
        """The rows of a block; None where a line of it is at fault."""
        import pyarrow as pa
        import pyarrow.compute as pc

        lines = lines_of(block)
        if b"\n\n" in block or block.startswith(b"\n") or not block.strip():
            lines = lines.filter(pc.greater(pc.binary_length(lines), 0))
        try:
            block.decode()
            found = self._decoded(block)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        if len(found) != len(lines):
            return None
        return pa.RecordBatch.from_arrays(*self._columns(found, lines))

    def _decoded(self, block: bytes) -> list[Any]:
        """Raises: MsgspecError."""
        if self._texts is not None:
            try:
                return self._texts.decode_lines(block)
            except msgspec.ValidationError:
                self._texts = None
        return self._decoder.decode_lines(block)

    def _slowly(self, first_line: int, block: bytes) -> RowBatch:
        import pyarrow as pa

        good: list[Any] = []
        lines: list[bytes] = []
        bad: list[RejectedRow] = []
        for number, line in records(first_line, block, None):
            if not line.strip():
                continue
            try:
                line.decode()
                good.append(self._decoder.decode(line))
                lines.append(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                bad.append(
                    RejectedRow(
                        len(good), number, f"not JSON: {error}" if not isinstance(error, msgspec.ValidationError) else str(error), line
                    )
                )
        return RowBatch(pa.RecordBatch.from_arrays(*self._columns(good, pa.array(lines, pa.binary()))), bad, self._source.done)

    def _columns(self, found: list[Any], lines: Any) -> tuple[list[Any], list[str]]:
        import pyarrow as pa

        if not self._as_dict:
            made = [pa.array([_text(getattr(one, slot)) for one in found], pa.binary()) for slot in self._slots]
            return [*made, lines], [*self._how.fields, WHOLE]
        chosen, without = self._how.chosen, frozenset(self._how.without)
        kept = [
            {name: raw for name, raw in one.items() if name not in without}
            if chosen is None
            else {name: one[name] for name in chosen if name in one and name not in without}
            for one in found
        ]
        encode, nothing = msgspec.json.Encoder().encode, msgspec.Raw()
        made = [pa.array([_text(one.get(name, nothing)) for one in found], pa.binary()) for name in self._how.fields]
        return [*made, pa.array([encode(one) for one in kept], pa.binary())], [*self._how.fields, WHOLE]

    def _check_fields(self, batch: Any) -> None:
        """Raises: CannotLoad for a field that none of the first rows has."""
        for name in self._how.fields:
            if batch.column(name).null_count < batch.num_rows:
                continue
            there: dict[str, None] = {}
            for line in batch.column(WHOLE)[:100].to_pylist():
                there |= dict.fromkeys(msgspec.json.decode(line))
            if name not in there:
                raise CannotLoad(f"no record has a field {name!r}{suggestion(name, there)}; there are {', '.join(there)}")


def _text(raw: msgspec.Raw | str | None) -> bytes | str | None:
    """A field as text: strings as they are, others as they are written; None for null, and where it is missing."""
    if not isinstance(raw, msgspec.Raw):
        return raw
    data = bytes(raw)
    if data[:1] != b'"':
        return None if not data or data == b"null" else data
    return data[1:-1] if b"\\" not in data else msgspec.json.decode(data, type=str).encode()


def _check_lines(block: bytes) -> None:
    """Raises: CannotLoad where values are not one on a line."""
    first = block.lstrip().split(b"\n", 1)[0].strip()
    if first == b"{" or first.startswith(b"["):
        how = "jq -c '.[]'" if first.startswith(b"[") else "jq -c ."
        raise CannotLoad(f"it is JSON over several lines, and each record must be on a line of its own: {how} makes them")
