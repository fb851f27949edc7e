# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The record codec, compiled. ``_pure`` is its twin: the same functions, the same results, the same faults.

Input comes from strangers, so nothing is read before its end was compared: ``parse`` confines each record to its declared end and that
to the end of the payload, and every other function reads only what ``parse`` found. Output buffers are as large as the input they can
come from at most, so filling them needs no checks and a buffer that another thread changes meanwhile does no harm either.
"""
include "_native_shared.pxi"

cdef enum:
    BATCH_HEADER = 61
    RECORD_MIN = 7
    HEADER_MIN = 2
    # A zero byte and a schema's id.
    FRAME = 5
    # Below this many bytes a walk is over sooner than another thread could use the interpreter.
    NOGIL_MIN = 65536

cdef struct Record:
    int64_t timestamp_delta
    int32_t offset_delta
    const uint8_t *key
    int32_t key_size
    const uint8_t *value
    int32_t value_size
    const uint8_t *headers
    int32_t header_count

# ---------------------------------------------------------------------------------------------------------------- records

cdef inline int read_field(const uint8_t **cursor, const uint8_t *stop, const uint8_t **data, int32_t *size) noexcept nogil:
    """A length and its bytes; -1 is null."""
    cdef int fault = read32(cursor, stop, size)
    if fault:
        return fault
    data[0] = cursor[0]
    if size[0] < 0:
        return FINE if size[0] == -1 else LENGTH
    if size[0] > stop - cursor[0]:
        return PAST
    cursor[0] += size[0]
    return FINE


cdef int skip_headers(const uint8_t **cursor, const uint8_t *stop, int32_t count) noexcept nogil:
    cdef const uint8_t *data
    cdef int32_t size, index
    cdef int fault
    for index in range(count):
        fault = read32(cursor, stop, &size)
        if fault:
            return fault
        if size < 0:
            return HEADER_KEY
        if size > stop - cursor[0]:
            return PAST
        cursor[0] += size
        fault = read_field(cursor, stop, &data, &size)
        if fault:
            return fault
    return FINE


cdef inline int32_t unzigzag(uint32_t value) noexcept nogil:
    return <int32_t>(value >> 1) ^ -<int32_t>(value & 1)


cdef inline uint32_t short_number(const uint8_t **cursor, uint32_t *long) noexcept nogil:
    """A number of one or two bytes, not yet unfolded, where two bytes are there to be read; marks ``long`` when it has more."""
    cdef const uint8_t *p = cursor[0]
    cdef uint32_t value = p[0]
    if likely(value < 0x80):
        cursor[0] = p + 1
        return value
    long[0] |= p[1] & 0x80
    cursor[0] = p + 2
    return (value & 0x7F) | (<uint32_t>p[1] << 7)


cdef inline bint quick(const uint8_t **cursor, const uint8_t *end, Record *record) noexcept nogil:
    """Reads a well-formed record of short numbers and no headers, as nearly all are; anything else is for ``careful``.

    It looks for the end of the payload only, and compares where it arrives with the end the record declared: when they are
    equal, all that was read lies within the record.
    """
    cdef const uint8_t *p = cursor[0]
    cdef const uint8_t *body
    cdef uint32_t long = 0
    cdef Py_ssize_t length
    if end - p < 12:
        # Up to two bytes of length, one of attributes, six of numbers, and three that the value and the headers take at least.
        return False
    length = unzigzag(short_number(&p, &long))
    body = p
    p += 1
    record.timestamp_delta = unzigzag(short_number(&p, &long))
    record.offset_delta = unzigzag(short_number(&p, &long))
    record.key_size = unzigzag(short_number(&p, &long))
    if long or record.key_size < -1 or record.key_size > end - p - 3:
        return False
    record.key = p
    if record.key_size > 0:
        p += record.key_size
    record.value_size = unzigzag(short_number(&p, &long))
    if long or record.value_size < -1 or record.value_size > end - p - 1:
        return False
    record.value = p
    if record.value_size > 0:
        p += record.value_size
    if p[0] or p + 1 - body != length:
        return False
    record.header_count = 0
    record.headers = cursor[0] = p + 1
    return True


cdef inline int careful(const uint8_t **cursor, const uint8_t *end, Record *record) noexcept nogil:
    """``parse`` field by field, each within the declared end of the record."""
    cdef int32_t length
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef int fault = read32(cursor, end, &length)
    if fault:
        return fault
    if length < 0:
        return LENGTH
    p = cursor[0]
    if length > end - p:
        return PAST
    if length == 0:
        return TRUNCATED
    stop = p + length
    p += 1
    fault = read64(&p, stop, &record.timestamp_delta)
    if fault:
        return fault
    fault = read32(&p, stop, &record.offset_delta)
    if fault:
        return fault
    fault = read_field(&p, stop, &record.key, &record.key_size)
    if fault:
        return fault
    fault = read_field(&p, stop, &record.value, &record.value_size)
    if fault:
        return fault
    if p < stop and p[0] == 0:
        # A last byte has none behind it to look at, so read32 would take its slow path here each time.
        record.header_count = 0
        p += 1
    else:
        fault = read32(&p, stop, &record.header_count)
        if fault:
            return fault
    if record.header_count < 0 or record.header_count > (stop - p) / HEADER_MIN:
        return HEADERS
    record.headers = p
    if record.header_count:
        fault = skip_headers(&p, stop, record.header_count)
        if fault:
            return fault
    if p != stop:
        return UNREAD
    cursor[0] = p
    return FINE


# Through a pointer, so that compilers do not fold it into the loops of those who need it once in a million records.
cdef int (*careful_call)(const uint8_t **, const uint8_t *, Record *) noexcept nogil
careful_call = careful


cdef inline int parse(const uint8_t **cursor, const uint8_t *end, Record *record) noexcept nogil:
    """Reads the record at the cursor and moves past it, or tells the fault."""
    # ``careful`` gets copies, so that the compiler can keep the caller's cursor and record in registers.
    cdef const uint8_t *p
    cdef Record other
    cdef int fault
    if likely(quick(cursor, end, record)):
        return FINE
    p = cursor[0]
    fault = careful_call(&p, end, &other)
    if not fault:
        cursor[0] = p
        record[0] = other
    return fault

cdef int confine(Py_ssize_t size, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count) except -1:
    if position < 0 or end < position or end > size:
        raise IndexError(f"[{position}, {end}) is not inside the {size} bytes of the buffer")
    if count < 0 or count > (end - position) / RECORD_MIN:
        raise record_fault(COUNT, count)
    return 0


cdef struct Summary:
    int64_t least
    int64_t greatest
    Py_ssize_t index_of_greatest
    Py_ssize_t keyless
    Py_ssize_t index


cdef int summarize(const uint8_t *p, const uint8_t *end, Py_ssize_t count, int64_t base_timestamp, Summary *out) noexcept nogil:
    cdef Record record
    cdef int fault
    cdef Py_ssize_t index, keyless = 0, index_of_greatest = -1
    cdef int64_t timestamp = 0, greatest = -1
    # -1, as an unsigned number, is above every timestamp that counts.
    cdef int64_t least = INT64_MAX
    cdef bint seen = False
    for index in range(count):
        # Not ``parse``: nothing is copied here that its longer way ahead would overlap with, and this is measurably faster.
        fault = careful(&p, end, &record)
        if not fault:
            if ottla_add_overflows(base_timestamp, record.timestamp_delta, &timestamp):
                fault = TIMESTAMP
            elif record.offset_delta != index:
                fault = OFFSET_DELTA
        if fault:
            out.index = index
            return fault
        if timestamp > greatest:
            greatest = timestamp
            index_of_greatest = index
        if timestamp <= least and timestamp != -1:
            least = timestamp
            seen = True
        keyless += record.key_size < 0
    out.least = least if seen else -1
    out.greatest = greatest
    out.index_of_greatest = index_of_greatest
    out.keyless = keyless
    out.index = count
    return TRAILING if p != end else FINE


def check_records(buffer, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count, int64_t base_timestamp):
    """See ``_pure.check_records``."""
    cdef Py_buffer view
    cdef Summary summary
    cdef int fault
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        confine(view.len, position, end, count)
        if end - position < NOGIL_MIN:
            fault = summarize(<const uint8_t *>view.buf + position, <const uint8_t *>view.buf + end, count, base_timestamp, &summary)
        else:
            with nogil:
                fault = summarize(<const uint8_t *>view.buf + position, <const uint8_t *>view.buf + end, count, base_timestamp, &summary)
    finally:
        PyBuffer_Release(&view)
    if fault:
        raise record_fault(fault, summary.index)
    return summary.least, summary.greatest, summary.index_of_greatest, summary.keyless


def keyless_records(buffer, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count, Py_ssize_t limit):
    """See ``_pure.keyless_records``."""
    cdef View view = View(buffer)
    cdef Record record
    cdef Py_ssize_t index
    cdef int fault
    cdef list found = []
    confine(view.size, position, end, count)
    cdef const uint8_t *p = view.data + position
    cdef const uint8_t *stop = view.data + end
    for index in range(count):
        fault = parse(&p, stop, &record)
        if fault:
            raise record_fault(fault, index)
        if record.key_size < 0 and len(found) < limit:
            found.append(index)
    if p != stop:
        raise record_fault(TRAILING, count)
    return found


def records_outside(
    buffer, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count, int64_t base_timestamp, int64_t low, int64_t high, Py_ssize_t limit
):
    """See ``_pure.records_outside``."""
    cdef View view = View(buffer)
    cdef Record record
    cdef Py_ssize_t index
    cdef int64_t timestamp
    cdef int fault
    cdef list found = []
    confine(view.size, position, end, count)
    cdef const uint8_t *p = view.data + position
    cdef const uint8_t *stop = view.data + end
    for index in range(count):
        fault = parse(&p, stop, &record)
        if not fault and ottla_add_overflows(base_timestamp, record.timestamp_delta, &timestamp):
            fault = TIMESTAMP
        if fault:
            raise record_fault(fault, index)
        if timestamp != -1 and (timestamp < low or timestamp > high) and len(found) < limit:
            found.append((index, timestamp))
    if p != stop:
        raise record_fault(TRAILING, count)
    return found


cdef int note_schema(const uint8_t *data, Py_ssize_t size, Py_ssize_t index, dict found, int64_t *last, Py_ssize_t limit) except -1:
    """Notes the schema id in a frame; 1 if there is no frame."""
    cdef int64_t number
    if size < FRAME or data[0]:
        return 1
    number = <int64_t>data[1] << 24 | <int64_t>data[2] << 16 | <int64_t>data[3] << 8 | <int64_t>data[4]
    # Nearly all records of a batch name the same schema.
    if number != last[0]:
        last[0] = number
        if len(found) <= limit and number not in found:
            found[number] = index
    return 0


def schema_frames(buffer, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count, bint keys, bint values, Py_ssize_t limit):
    """See ``_pure.schema_frames``."""
    cdef View view = View(buffer)
    cdef Record record
    cdef Py_ssize_t index, unframed_key = -1, unframed_value = -1
    cdef int64_t last_key = -1, last_value = -1
    cdef int fault
    cdef dict of_keys = {}
    cdef dict of_values = {}
    confine(view.size, position, end, count)
    cdef const uint8_t *p = view.data + position
    cdef const uint8_t *stop = view.data + end
    for index in range(count):
        fault = parse(&p, stop, &record)
        if fault:
            raise record_fault(fault, index)
        if keys and record.key_size >= 0 and note_schema(record.key, record.key_size, index, of_keys, &last_key, limit):
            if unframed_key < 0:
                unframed_key = index
        if values and record.value_size >= 0 and note_schema(record.value, record.value_size, index, of_values, &last_value, limit):
            if unframed_value < 0:
                unframed_value = index
    if p != stop:
        raise record_fault(TRAILING, count)
    return of_keys, of_values, unframed_key, unframed_value


cdef tuple header_tuples(const uint8_t *p, const uint8_t *end, int32_t count):
    """The headers that ``parse`` has walked, as ((name, value), ...)."""
    cdef list out = []
    cdef const uint8_t *data
    cdef int32_t size = 0, index
    for index in range(count):
        # Asked again, since the bytes may be a bytearray that changed; ``parse`` has proved them once.
        if read_field(&p, end, &data, &size) or size < 0:
            raise record_fault(HEADER_KEY, index)
        name = PyUnicode_DecodeUTF8(<const char *>data, size, "replace")
        if read_field(&p, end, &data, &size):
            raise record_fault(HEADERS, index)
        out.append((name, None if size < 0 else PyBytes_FromStringAndSize(<const char *>data, size)))
    return tuple(out)


def decode_records(
    buffer,
    Py_ssize_t position,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    append_timestamp,
    int64_t start_offset,
    int64_t end_offset,
):
    """See ``_pure.decode_records``."""
    cdef View view = View(buffer)
    cdef Record record
    cdef Py_ssize_t index
    cdef int64_t timestamp, offset
    cdef int fault
    cdef list out = []
    cdef tuple none = ()
    cdef tuple headers
    cdef object key, value, stamp
    confine(view.size, position, end, count)
    cdef const uint8_t *p = view.data + position
    cdef const uint8_t *stop = view.data + end
    for index in range(count):
        fault = parse(&p, stop, &record)
        if not fault:
            if ottla_add_overflows(base_timestamp, record.timestamp_delta, &timestamp):
                fault = TIMESTAMP
            elif ottla_add_overflows(base_offset, record.offset_delta, &offset):
                fault = OFFSET
        if fault:
            raise record_fault(fault, index)
        if offset < start_offset or offset >= end_offset:
            continue
        key = None if record.key_size < 0 else PyBytes_FromStringAndSize(<const char *>record.key, record.key_size)
        value = None if record.value_size < 0 else PyBytes_FromStringAndSize(<const char *>record.value, record.value_size)
        headers = header_tuples(record.headers, p, record.header_count) if record.header_count else none
        if append_timestamp is None:
            stamp = timestamp
        else:
            stamp = append_timestamp
        out.append((offset, stamp, key, value, headers))
    if p != stop:
        raise record_fault(TRAILING, count)
    return out


# ---------------------------------------------------------------------------------------------------------------- hash

cdef int32_t murmur(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995, k
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef Py_ssize_t i, whole = size & ~<Py_ssize_t>3
    for i in range(0, whole, 4):
        k = <uint32_t>data[i] | <uint32_t>data[i + 1] << 8 | <uint32_t>data[i + 2] << 16 | <uint32_t>data[i + 3] << 24
        k *= m
        k ^= k >> 24
        h = h * m ^ k * m
    if size > whole:
        k = 0
        for i in range(size - 1, whole - 1, -1):
            k = k << 8 | data[i]
        h = (h ^ k) * m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return <int32_t>h


def murmur2(data):
    """See ``_pure.murmur2``."""
    cdef View view
    if PyBytes_CheckExact(data):
        return murmur(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    view = View(data)
    return murmur(view.data, view.size)


include "_native_build.pxi"
include "_native_columns.pxi"
include "_native_compact.pxi"
include "_native_open.pxi"
