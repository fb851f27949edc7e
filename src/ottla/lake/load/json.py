"""JSON lines: the value on each line is sent unchanged, including whitespace. Only fields with another role are extracted.

Numbers therefore keep all digits, and missing fields stay missing. Every line is checked, even if nothing is extracted.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ottla.base.options import suggestion
from ottla.lake.load.inputs import CannotLoad
from ottla.lake.load.line_files import LineSource, blocks, lines_of, records
from ottla.lake.load.reader import WHOLE, ReadOptions, RejectedRow, RowBatch


class JsonReader:
    """Reads JSON lines. The columns are the extracted fields, text unchanged and others as JSON, and the whole line."""

    columns = None
    value: str | None = WHOLE
    skipped = 0

    def __init__(self, source: LineSource, how: ReadOptions) -> None:
        self._source, self._how = source, how
        self._as_dict = how.chosen is not None or bool(how.without)
        self._slots = [f"f{number}" for number in range(len(how.fields))]
        names = dict(zip(self._slots, how.fields, strict=True))
        row: Any = msgspec.Raw
        #: Extracts fields that are text in all rows; None if there are none, or one is not text.
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
        """The rows of a block; None if a line is invalid."""
        lines = lines_of(block)
        if b"\n\n" in block or block.startswith(b"\n") or not block.strip():
            lines = lines.filter(pc.greater(pc.binary_length(lines), 0))
        try:
            block.decode()
            found = self._decoded(block)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
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
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                bad.append(
                    RejectedRow(
                        len(good), number, f"not JSON: {error}" if not isinstance(error, msgspec.ValidationError) else str(error), line
                    )
                )
        return RowBatch(pa.RecordBatch.from_arrays(*self._columns(good, pa.array(lines, pa.binary()))), bad, self._source.done)

    def _columns(self, found: list[Any], lines: Any) -> tuple[list[Any], list[str]]:
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
        """Raises: CannotLoad for a field that is in none of the first rows."""
        for name in self._how.fields:
            if batch.column(name).null_count < batch.num_rows:
                continue
            there: dict[str, None] = {}
            for line in batch.column(WHOLE)[:100].to_pylist():
                there |= dict.fromkeys(msgspec.json.decode(line))
            if name not in there:
                raise CannotLoad(f"no record has a field {name!r}{suggestion(name, there)}; there are {', '.join(there)}")


def _text(raw: msgspec.Raw | str | None) -> bytes | str | None:
    """A field as text: strings unchanged, others as JSON; None for null and missing ones."""
    if not isinstance(raw, msgspec.Raw):
        return raw
    data = bytes(raw)
    if data[:1] != b'"':
        return None if not data or data == b"null" else data
    return data[1:-1] if b"\\" not in data else msgspec.json.decode(data, type=str).encode()


def _check_lines(block: bytes) -> None:
    """Raises: CannotLoad unless each line has one value."""
    first = block.lstrip().split(b"\n", 1)[0].strip()
    if first == b"{" or first.startswith(b"["):
        how = "jq -c '.[]'" if first.startswith(b"[") else "jq -c ."
        raise CannotLoad(f"it is JSON over several lines, and each record must be on a line of its own: {how} makes them")
