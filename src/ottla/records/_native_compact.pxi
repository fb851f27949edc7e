# Compaction: the newest offset of each key, the records of a batch that stay, and their timestamps against another base.

cdef extern from "stdlib.h" nogil:
    void *ottla_malloc "malloc"(size_t size)


cdef struct Entry:
    uint64_t first
    uint64_t second
    # -1 where the slot is free.
    int64_t offset


cdef struct Table:
    Entry *entries
    uint64_t slots
    Py_ssize_t size
    Py_ssize_t entries_max
    uint64_t key0
    uint64_t key1


cdef inline uint64_t rotl(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline void sip_round(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotl(v[1], 13) ^ v[0]
    v[0] = rotl(v[0], 32)
    v[2] += v[3]
    v[3] = rotl(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotl(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotl(v[1], 17) ^ v[2]
    v[2] = rotl(v[2], 32)


cdef inline uint64_t word_at(const uint8_t *p) noexcept nogil:
    cdef uint64_t word = 0
    cdef int i
    for i in range(8):
        word |= <uint64_t>p[i] << (8 * i)
    return word


cdef void sip128(const Table *table, const uint8_t *data, Py_ssize_t size, uint64_t *first, uint64_t *second) noexcept nogil:
    """SipHash-2-4 with 128 bits: who does not know the key cannot make two record keys meet."""
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef Py_ssize_t i, whole = size & ~<Py_ssize_t>7
    v[0] = table.key0 ^ <uint64_t>0x736F6D6570736575
    v[1] = table.key1 ^ <uint64_t>0x646F72616E646F6D ^ <uint64_t>0xEE
    v[2] = table.key0 ^ <uint64_t>0x6C7967656E657261
    v[3] = table.key1 ^ <uint64_t>0x7465646279746573
    for i in range(0, whole, 8):
        word = word_at(data + i)
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
    word = <uint64_t>(size & 0xFF) << 56
    for i in range(size - whole):
        word |= <uint64_t>data[whole + i] << (8 * i)
    v[3] ^= word
    sip_round(v)
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    for i in range(4):
        sip_round(v)
    first[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for i in range(4):
        sip_round(v)
    second[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef inline Entry *slot_of(const Table *table, const uint8_t *data, Py_ssize_t size, uint64_t *first, uint64_t *second) noexcept nogil:
    """The key's slot, or the free one where it would go. One slot at least is always free."""
    cdef uint64_t slot
    cdef Entry *entry
    sip128(table, data, size, first, second)
    slot = first[0] % table.slots
    while True:
        entry = table.entries + slot
        if entry.offset < 0 or (entry.first == first[0] and entry.second == second[0]):
            return entry
        slot += 1
        if slot == table.slots:
            slot = 0


cdef inline bint put_offset(Table *table, const uint8_t *data, Py_ssize_t size, int64_t offset) noexcept nogil:
    cdef uint64_t first, second
    cdef Entry *entry = slot_of(table, data, size, &first, &second)
    if entry.offset < 0:
        if table.size >= table.entries_max:
            return False
        table.size += 1
        entry.first = first
        entry.second = second
    entry.offset = offset
    return True


cdef class OffsetMap:
    """See ``_pure.OffsetMap``."""

    cdef Table table

    def __cinit__(self, slots, entries_max, key):
        cdef bytes secret = key
        if not 1 <= entries_max < slots:
            raise ValueError("an offset map has room for one entry at least, and a free slot")
        if len(secret) != 16:
            raise ValueError("the key of an offset map has 16 bytes")
        self.table.slots = slots
        self.table.entries_max = entries_max
        self.table.key0 = word_at(<const uint8_t *>PyBytes_AS_STRING(secret))
        self.table.key1 = word_at(<const uint8_t *>PyBytes_AS_STRING(secret) + 8)
        self.table.entries = <Entry *>ottla_malloc(self.table.slots * sizeof(Entry))
        if self.table.entries == NULL:
            raise MemoryError()
        # Touches every page of what may be more than a hundred megabytes; so does giving them back.
        with nogil:
            memset(self.table.entries, 0xFF, self.table.slots * sizeof(Entry))

    def __dealloc__(self):
        with nogil:
            free(self.table.entries)

    def __len__(self):
        return self.table.size

    def digest(self, key):
        """The hash of a key, 16 bytes; for tests."""
        cdef View view = View(key)
        cdef uint64_t first, second
        sip128(&self.table, view.data, view.size, &first, &second)
        return first.to_bytes(8, "little") + second.to_bytes(8, "little")

    def put(self, key, int64_t offset):
        """See ``_pure.OffsetMap.put``."""
        cdef View view = View(key)
        if offset < 0:
            raise ValueError("offsets are not negative")
        return put_offset(&self.table, view.data, view.size, offset)

    def latest(self, key):
        """See ``_pure.OffsetMap.latest``."""
        cdef View view = View(key)
        cdef uint64_t first, second
        return slot_of(&self.table, view.data, view.size, &first, &second).offset


cdef int map_span(
    Table *table, const uint8_t *p, const uint8_t *end, Py_ssize_t count, int64_t base_offset, int64_t start_offset, Py_ssize_t *place, int64_t *full_at
) noexcept nogil:
    cdef Record record
    cdef int64_t offset
    cdef int fault
    cdef Py_ssize_t index
    full_at[0] = -1
    for index in range(count):
        place[0] = index
        fault = parse(&p, end, &record)
        if fault:
            return fault
        if ottla_add_overflows(base_offset, record.offset_delta, &offset) or offset < 0:
            return OFFSET
        if record.key_size >= 0 and offset >= start_offset and not put_offset(table, record.key, record.key_size, offset):
            full_at[0] = offset
            return FINE
    place[0] = count
    return TRAILING if p != end else FINE


def map_records(OffsetMap offset_map, buffer, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count, int64_t base_offset, int64_t start_offset):
    """See ``_pure.map_records``."""
    cdef View view = View(buffer)
    cdef Py_ssize_t place = 0
    cdef int64_t full_at
    cdef int fault
    confine(view.size, position, end, count)
    with nogil:
        fault = map_span(&offset_map.table, view.data + position, view.data + end, count, base_offset, start_offset, &place, &full_at)
    if fault:
        raise record_fault(fault, place)
    return full_at


cdef struct Kept:
    Py_ssize_t count
    Py_ssize_t tombstones
    int64_t max_timestamp
    Py_ssize_t size
    Py_ssize_t index


cdef int keep_span(
    const Table *table,
    int64_t upto,
    bint keep_tombstones,
    const uint8_t *p,
    const uint8_t *end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    uint8_t *out,
    Kept *kept,
) noexcept nogil:
    cdef Record record
    cdef int64_t offset, timestamp
    cdef uint64_t first, second
    cdef const uint8_t *start
    cdef int fault
    cdef Py_ssize_t index
    kept.count = kept.tombstones = kept.size = 0
    kept.max_timestamp = -1
    for index in range(count):
        kept.index = index
        start = p
        fault = parse(&p, end, &record)
        if fault:
            return fault
        if ottla_add_overflows(base_timestamp, record.timestamp_delta, &timestamp):
            return TIMESTAMP
        if ottla_add_overflows(base_offset, record.offset_delta, &offset):
            return OFFSET
        if offset < upto:
            if record.key_size < 0 or (record.value_size < 0 and not keep_tombstones):
                continue
            if offset < slot_of(table, record.key, record.key_size, &first, &second).offset:
                continue
        memcpy(out + kept.size, start, p - start)
        kept.size += p - start
        kept.count += 1
        kept.tombstones += record.value_size < 0
        if timestamp > kept.max_timestamp:
            kept.max_timestamp = timestamp
    kept.index = count
    return TRAILING if p != end else FINE


def keep_records(
    OffsetMap offset_map,
    int64_t upto,
    bint keep_tombstones,
    buffer,
    Py_ssize_t position,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
):
    """See ``_pure.keep_records``."""
    cdef View view = View(buffer)
    cdef Kept kept
    cdef int fault
    cdef bytearray payload
    cdef uint8_t *out
    confine(view.size, position, end, count)
    payload = PyByteArray_FromStringAndSize(NULL, end - position)
    out = <uint8_t *>PyByteArray_AS_STRING(payload)
    with nogil:
        fault = keep_span(
            &offset_map.table,
            upto,
            keep_tombstones,
            view.data + position,
            view.data + end,
            count,
            base_offset,
            base_timestamp,
            out,
            &kept,
        )
    if fault:
        raise record_fault(fault, kept.index)
    if kept.count == count:
        return kept.count, kept.tombstones, kept.max_timestamp, None
    PyByteArray_Resize(payload, kept.size)
    return kept.count, kept.tombstones, kept.max_timestamp, payload


def shift_timestamps(buffer, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count, int64_t shift):
    """See ``_pure.shift_timestamps``."""
    cdef View view = View(buffer)
    cdef Record record
    cdef const uint8_t *body
    cdef const uint8_t *rest
    cdef int64_t delta
    cdef int32_t length
    cdef int fault
    cdef Py_ssize_t index, attributes_and_delta
    cdef uint8_t *out
    cdef uint8_t *begin
    cdef bytearray payload
    confine(view.size, position, end, count)
    # A delta grows by nine bytes at most, and with it the length by four.
    payload = PyByteArray_FromStringAndSize(NULL, end - position + 13 * count)
    begin = out = <uint8_t *>PyByteArray_AS_STRING(payload)
    cdef const uint8_t *p = view.data + position
    cdef const uint8_t *stop = view.data + end
    for index in range(count):
        body = p
        fault = parse(&p, stop, &record)
        if not fault:
            fault = read32(&body, stop, &length)
        if not fault and ottla_add_overflows(record.timestamp_delta, shift, &delta):
            fault = TIMESTAMP
        if fault:
            raise record_fault(fault, index)
        rest = body + 1
        fault = read64(&rest, p, &record.timestamp_delta)
        if fault or p < rest:
            raise record_fault(TRUNCATED, index)
        attributes_and_delta = 1 + varint_size(zigzag64(delta))
        out = write_varint(out, zigzag64(attributes_and_delta + (p - rest)))
        out[0] = body[0]
        out = write_varint(out + 1, zigzag64(delta))
        memcpy(out, rest, p - rest)
        out += p - rest
    if p != stop:
        raise record_fault(TRAILING, count)
    PyByteArray_Resize(payload, out - begin)
    return payload
