# Part of _native.pyx: records from and to Arrow's column layout.
#
# Reading: a payload bounds what its records can fill, so output is taken at once at that size, filled in one pass and cut to what was
# used; pages that were never written cost nothing. Keys begin with an eighth of it and grow, since few records are mostly key, and heap
# that was never used would still be given back and faulted in again call by call. Headers, which could be one for every 2 bytes, are
# counted in a pass before.

cdef extern from "Python.h":
    PyObject *raw_bytes "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t size) except NULL
    void Py_XDECREF(PyObject *)

cdef enum:
    # Room behind variable-size data, so that short pieces can be copied in whole 16-byte steps.
    SLACK = 16
    MICROSECONDS = 1000
    # Not a fault: the keys need more room before ``fill`` can go on.
    GROW = -1
    KEY_SHARE = 8
    KEY_ROOM_MIN = 4096


cdef class Room:
    """A bytes object in the making."""

    cdef PyObject *owned
    cdef uint8_t *data

    def __cinit__(self, Py_ssize_t capacity):
        self.owned = raw_bytes(NULL, capacity)
        self.data = <uint8_t *>PyBytes_AS_STRING(<object>self.owned)

    def __dealloc__(self):
        Py_XDECREF(self.owned)

    cdef int grow(self, Py_ssize_t capacity) except -1:
        """Room for more, with what is there kept."""
        _PyBytes_Resize(&self.owned, capacity)
        self.data = <uint8_t *>PyBytes_AS_STRING(<object>self.owned)
        return 0

    cdef object cut(self, Py_ssize_t size):
        """The first ``size`` bytes, without copying them; the room is gone."""
        _PyBytes_Resize(&self.owned, size)
        out = <object>self.owned
        Py_XDECREF(self.owned)
        self.owned = NULL
        self.data = NULL
        return out


cdef struct Binary:
    int32_t *ends
    uint8_t *data
    Py_ssize_t used
    Py_ssize_t capacity
    uint8_t *valid
    Py_ssize_t nulls


cdef struct Batch:
    const uint8_t *start
    const uint8_t *end
    # The record at ``start``; both move on when a filling pauses.
    Py_ssize_t index
    Py_ssize_t count
    int64_t base_offset
    int64_t base_timestamp
    bint append_time
    int64_t append_timestamp


cdef struct Filling:
    int64_t start_offset
    int64_t end_offset
    bint microseconds
    bint headers
    Py_ssize_t rows
    Py_ssize_t header_rows
    Py_ssize_t header_rows_max
    int64_t *offsets
    int64_t *timestamps
    int32_t *types
    int32_t *header_ends
    Binary key
    Binary value
    Binary header_key
    Binary header_value
    # The record of a fault.
    Py_ssize_t index


cdef inline int64_t to_microseconds(int64_t ms) noexcept nogil:
    if ms > INT64_MAX / MICROSECONDS:
        return INT64_MAX
    if ms < INT64_MIN / MICROSECONDS:
        return INT64_MIN
    return ms * MICROSECONDS


cdef inline void add_binary(Binary *column, Py_ssize_t row, const uint8_t *data, int32_t size, const uint8_t *end) noexcept nogil:
    cdef uint8_t *target = column.data + column.used
    cdef int32_t done = 0
    if size > 0:
        if size <= 256 and end - data >= size + SLACK:
            while done < size:
                memcpy(target + done, data + done, SLACK)
                done += SLACK
        else:
            memcpy(target, data, size)
        column.used += size
    elif size < 0:
        column.valid[row >> 3] &= ~(<uint8_t>1 << (row & 7))
        column.nulls += 1
    column.ends[row + 1] = <int32_t>column.used


cdef int fill(Batch *batch, Filling *to) noexcept nogil:
    cdef const uint8_t *p = batch.start
    cdef const uint8_t *h
    cdef const uint8_t *record_start
    cdef Record record
    cdef Py_ssize_t index, row = to.rows
    cdef int64_t timestamp = 0, offset = 0
    cdef int32_t count, size = 0, type = 1 if batch.append_time else 0
    cdef int fault = FINE
    for index in range(batch.index, batch.count):
        to.index = index
        record_start = p
        fault = parse(&p, batch.end, &record)
        if fault:
            return fault
        if ottla_add_overflows(batch.base_timestamp, record.timestamp_delta, &timestamp):
            return TIMESTAMP
        if ottla_add_overflows(batch.base_offset, record.offset_delta, &offset):
            return OFFSET
        if offset < to.start_offset or offset >= to.end_offset:
            continue
        if record.key_size > to.key.capacity - to.key.used:
            batch.start = record_start
            batch.index = index
            return GROW
        if batch.append_time:
            timestamp = batch.append_timestamp
        to.offsets[row] = offset
        to.timestamps[row] = to_microseconds(timestamp) if to.microseconds else timestamp
        to.types[row] = type
        add_binary(&to.key, row, record.key, record.key_size, batch.end)
        add_binary(&to.value, row, record.value, record.value_size, batch.end)
        if to.headers:
            h = record.headers
            for count in range(record.header_count):
                if to.header_rows == to.header_rows_max:
                    return HEADERS
                fault = read_field(&h, p, &record.key, &size)
                if fault or size < 0:
                    return HEADER_KEY
                add_binary(&to.header_key, to.header_rows, record.key, size, batch.end)
                fault = read_field(&h, p, &record.value, &size)
                if fault:
                    return fault
                add_binary(&to.header_value, to.header_rows, record.value, size, batch.end)
                to.header_rows += 1
            to.header_ends[row + 1] = <int32_t>to.header_rows
        row += 1
        to.rows = row
    to.index = batch.count
    return TRAILING if p != batch.end else FINE


cdef bint count_headers(Batch *batch, Py_ssize_t *total) noexcept nogil:
    """Adds the number of headers; False at a fault, which ``fill`` will come upon and name."""
    cdef const uint8_t *p = batch.start
    cdef Record record
    cdef Py_ssize_t index
    for index in range(batch.count):
        if parse(&p, batch.end, &record):
            return False
        total[0] += record.header_count
    return True


cdef class BinaryRoom:
    """The three buffers of a binary column in the making."""

    cdef Room ends
    cdef Room data
    cdef Room valid

    cdef int open(self, Py_ssize_t rows, Py_ssize_t size, Binary *column) except -1:
        self.ends = Room.__new__(Room, 4 * (rows + 1))
        self.data = Room.__new__(Room, size + SLACK)
        self.valid = Room.__new__(Room, (rows + 7) // 8)
        memset(self.valid.data, 0xFF, (rows + 7) // 8)
        column.ends = <int32_t *>self.ends.data
        column.ends[0] = 0
        column.data = self.data.data
        column.valid = self.valid.data
        column.used = column.nulls = 0
        column.capacity = size
        return 0

    cdef int grow(self, Py_ssize_t size, Binary *column) except -1:
        self.data.grow(size + SLACK)
        column.data = self.data.data
        column.capacity = size
        return 0

    cdef tuple close(self, Py_ssize_t rows, Binary *column):
        """(offsets, data, validity or None, number of nulls)."""
        valid = None
        if column.nulls:
            if rows & 7:
                column.valid[rows >> 3] &= (1 << (rows & 7)) - 1
            valid = self.valid.cut((rows + 7) // 8)
        return self.ends.cut(4 * (rows + 1)), self.data.cut(column.used), valid, column.nulls


def decode_columns(list sources, int64_t start_offset, int64_t end_offset, bint microseconds, bint headers):
    """See ``_pure.decode_columns``."""
    cdef Filling to
    cdef Batch batch
    cdef Py_ssize_t rows = 0, size = 0, header_rows = 0, position, end, index
    cdef int fault
    cdef View view
    cdef list views = []
    for data, position, end, count, _, _, _ in sources:
        view = View(data)
        views.append(view)
        confine(view.size, position, end, count)
        rows += <Py_ssize_t>count
        size += end - position
    if size > INT32_MAX:
        raise OverflowError(f"columns of 32-bit offsets cannot hold {size} bytes")
    if headers:
        for index in range(len(sources)):
            batch_of(views[index], sources[index], &batch)
            if not count_headers(&batch, &header_rows):
                break
    cdef Room offsets = Room.__new__(Room, 8 * rows)
    cdef Room timestamps = Room.__new__(Room, 8 * rows)
    cdef Room types = Room.__new__(Room, 4 * rows)
    cdef BinaryRoom key = BinaryRoom()
    cdef BinaryRoom value = BinaryRoom()
    cdef BinaryRoom header_key, header_value
    cdef Room header_ends
    key.open(rows, min(size, max(size // KEY_SHARE, KEY_ROOM_MIN)), &to.key)
    value.open(rows, size, &to.value)
    to.start_offset = start_offset
    to.end_offset = end_offset
    to.microseconds = microseconds
    to.headers = headers
    to.rows = to.header_rows = to.index = 0
    to.header_rows_max = header_rows
    to.offsets = <int64_t *>offsets.data
    to.timestamps = <int64_t *>timestamps.data
    to.types = <int32_t *>types.data
    if headers:
        header_ends = Room.__new__(Room, 4 * (rows + 1))
        to.header_ends = <int32_t *>header_ends.data
        to.header_ends[0] = 0
        header_key = BinaryRoom()
        header_value = BinaryRoom()
        header_key.open(header_rows, size, &to.header_key)
        header_value.open(header_rows, size, &to.header_value)
    for index in range(len(sources)):
        batch_of(views[index], sources[index], &batch)
        while True:
            if batch.end - batch.start < NOGIL_MIN:
                fault = fill(&batch, &to)
            else:
                with nogil:
                    fault = fill(&batch, &to)
            if fault != GROW:
                break
            key.grow(min(size, 2 * to.key.capacity), &to.key)
        if fault:
            raise record_fault(fault, to.index)
    rows = to.rows
    header_columns = None
    if headers:
        header_columns = (
            header_ends.cut(4 * (rows + 1)),
            header_key.close(to.header_rows, &to.header_key),
            header_value.close(to.header_rows, &to.header_value),
        )
    return (
        rows,
        offsets.cut(8 * rows),
        timestamps.cut(8 * rows),
        types.cut(4 * rows),
        key.close(rows, &to.key),
        value.close(rows, &to.value),
        header_columns,
    )


cdef int batch_of(View view, tuple source, Batch *batch) except -1:
    cdef Py_ssize_t position = source[1], end = source[2]
    batch.start = view.data + position
    batch.end = view.data + end
    batch.index = 0
    batch.count = source[3]
    batch.base_offset = source[4]
    batch.base_timestamp = source[5]
    batch.append_time = source[6] is not None
    batch.append_timestamp = source[6] if batch.append_time else 0
    return 0


# ---------------------------------------------------------------------------------------------------------------- writing

cdef class ColumnEncoder:
    """See ``_pure.ColumnEncoder``."""

    cdef Column value
    cdef Column key
    cdef Column header_list
    cdef Column header_key
    cdef Column header_value
    cdef View timestamps
    cdef View rows
    cdef int64_t timestamp_ms
    cdef bint microseconds
    cdef Py_ssize_t next
    cdef Py_ssize_t last

    def __init__(self, value, key, headers, timestamps, bint microseconds, rows, Py_ssize_t first, Py_ssize_t last):
        self.value = binary_column(value)
        self.key = None if key is None else binary_column(key)
        if headers is not None:
            self.header_list = Column(*headers[0])
            self.header_key, self.header_value = binary_column(headers[1]), binary_column(headers[2])
        if isinstance(timestamps, int):
            self.timestamp_ms = timestamps
        else:
            self.timestamps = View(timestamps)
        self.microseconds = microseconds
        self.rows = None if rows is None else View(rows)
        if first < 0 or (self.rows is not None and last > self.rows.size // 8):
            raise IndexError(f"rows [{first}, {last}) are not all there")
        self.next = first
        self.last = last

    def encode(self, Py_ssize_t size_max):
        """See ``_pure.ColumnEncoder.encode``."""
        cdef Builder builder
        cdef int64_t row, timestamp = self.timestamp_ms
        cdef const uint8_t *key = NULL
        cdef const uint8_t *value = NULL
        cdef const uint8_t *headers
        cdef Py_ssize_t key_size = -1, value_size = -1, headers_size
        cdef uint8_t zero = 0
        if self.next >= self.last:
            return None
        builder = Builder(size_max)
        builder.reserve(max(0, min(size_max, 65536) - BATCH_HEADER))
        while self.next < self.last:
            row = self.next
            if self.rows is not None:
                memcpy(&row, self.rows.data + 8 * self.next, 8)
            if self.timestamps is not None:
                if row < 0 or row >= self.timestamps.size // 8:
                    raise record_fault(COLUMN, row)
                memcpy(&timestamp, self.timestamps.data + 8 * row, 8)
                if self.microseconds:
                    timestamp = timestamp // MICROSECONDS - (timestamp % MICROSECONDS < 0)
            self.value.locate(row, &value, &value_size)
            if self.key is not None:
                self.key.locate(row, &key, &key_size)
            headers = &zero
            headers_size = 1
            if self.header_list is not None and self.encode_headers(builder, row):
                headers = builder.scratch
                headers_size = builder.scratch_used
            if not builder.put(timestamp, key, key_size, value, value_size, headers, headers_size):
                break
            self.next += 1
        return builder

    cdef int encode_headers(self, Builder builder, Py_ssize_t row) except -1:
        """1 with the headers of a row in the builder's scratch space; 0 when it has none."""
        cdef int64_t start = 0, stop = 0, index
        cdef const uint8_t *data = NULL
        cdef Py_ssize_t size = -1
        cdef int found = self.header_list.span(row, self.header_key.rows, &start, &stop)
        if found < 0:
            raise record_fault(COLUMN, row)
        if not found or start == stop:
            return 0
        builder.scratch_used = 0
        builder.scratch_number(stop - start)
        for index in range(start, stop):
            self.header_key.locate(index, &data, &size)
            if size < 0:
                raise record_fault(HEADER_KEY, row)
            builder.scratch_bytes(data, size)
            self.header_value.locate(index, &data, &size)
            if size < 0:
                builder.scratch_number(-1)
            else:
                builder.scratch_bytes(data, size)
        return 1


def partition_column(keys, Py_ssize_t first, Py_ssize_t last, int32_t count):
    """See ``_pure.partition_column``."""
    cdef Column column = binary_column(keys)
    cdef Py_ssize_t index, size = -1
    cdef const uint8_t *data = NULL
    cdef int32_t *out
    if not 0 <= first <= last or count < 1:
        raise IndexError(f"rows [{first}, {last}) of {count} partitions")
    cdef Room room = Room.__new__(Room, 4 * (last - first))
    out = <int32_t *>room.data
    for index in range(first, last):
        column.locate(index, &data, &size)
        out[index - first] = -1 if size < 0 else (murmur(data, size) & 0x7FFFFFFF) % count
    return room.cut(4 * (last - first))


def group_rows(numbers, Py_ssize_t count):
    """See ``_pure.group_rows``."""
    cdef View view = View(numbers)
    cdef const int32_t *number = <const int32_t *>view.data
    cdef Py_ssize_t rows = view.size // 4, row, total = 0, size
    cdef Py_ssize_t wrong = -1
    cdef int64_t *out
    cdef Py_ssize_t *ends
    if count < 1:
        raise IndexError(f"there are {count} partitions")
    cdef Room room = Room.__new__(Room, 8 * rows)
    cdef Room places = Room.__new__(Room, sizeof(Py_ssize_t) * (count + 1))
    out = <int64_t *>room.data
    ends = <Py_ssize_t *>places.data
    memset(ends, 0, sizeof(Py_ssize_t) * (count + 1))
    with nogil:
        for row in range(rows):
            if number[row] < -1 or number[row] >= count:
                wrong = row
                break
            ends[number[row] + 1] += 1
        if wrong < 0:
            for row in range(count + 1):
                size = ends[row]
                ends[row] = total
                total += size
            for row in range(rows):
                # Asked again, since the numbers may lie in memory that changes.
                if number[row] < -1 or number[row] >= count or ends[number[row] + 1] >= rows:
                    wrong = row
                    break
                out[ends[number[row] + 1]] = row
                ends[number[row] + 1] += 1
    if wrong >= 0:
        raise IndexError(f"row {wrong} is for partition {number[wrong]}, and there are {count}")
    return room.cut(8 * rows), [ends[row] for row in range(count + 1)]
