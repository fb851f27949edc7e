# Part of _native.pyx: building batches.

cdef class Builder:
    """See ``_pure.Builder``."""

    cdef object buffer
    cdef uint8_t *data
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity
    cdef uint8_t *scratch
    cdef Py_ssize_t scratch_used
    cdef Py_ssize_t scratch_capacity
    cdef public Py_ssize_t size_max
    cdef readonly int32_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp

    def __cinit__(self):
        self.size_max = INT32_MAX
        self.base_timestamp = self.max_timestamp = -1
        self.capacity = 1024
        self.buffer = PyByteArray_FromStringAndSize(NULL, self.capacity)
        self.data = <uint8_t *>PyByteArray_AS_STRING(self.buffer)
        memset(self.data, 0, BATCH_HEADER)
        self.used = BATCH_HEADER

    def __init__(self, Py_ssize_t size_max=INT32_MAX):
        self.size_max = size_max

    def __dealloc__(self):
        free(self.scratch)

    @property
    def size(self):
        """Bytes of the batch so far, its header counted, uncompressed."""
        return 0 if self.buffer is None else self.used

    cdef int reserve(self, Py_ssize_t more) except -1:
        """Room for ``more`` bytes behind those used."""
        cdef Py_ssize_t wanted = self.used + more
        if wanted > self.capacity:
            wanted = max(wanted, 2 * self.capacity)
            PyByteArray_Resize(self.buffer, wanted)
            self.data = <uint8_t *>PyByteArray_AS_STRING(self.buffer)
            self.capacity = wanted
        return 0

    cdef int scratch_number(self, int64_t number) except -1:
        self.scratch_reserve(10)
        self.scratch_used = write_varint(self.scratch + self.scratch_used, zigzag64(number)) - self.scratch
        return 0

    cdef int scratch_reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t wanted = self.scratch_used + more
        cdef uint8_t *grown
        if wanted > self.scratch_capacity:
            wanted = max(wanted, 2 * self.scratch_capacity)
            grown = <uint8_t *>realloc(self.scratch, wanted)
            if grown == NULL:
                raise MemoryError
            self.scratch = grown
            self.scratch_capacity = wanted
        return 0

    cdef int scratch_bytes(self, const uint8_t *data, Py_ssize_t size) except -1:
        self.scratch_number(size)
        self.scratch_reserve(size)
        memcpy(self.scratch + self.scratch_used, data, size)
        self.scratch_used += size
        return 0

    cdef int encode_headers(self, tuple headers) except -1:
        """Encodes headers, with their count, into the scratch space."""
        cdef Py_ssize_t size
        cdef const char *text
        cdef View view
        self.scratch_used = 0
        self.scratch_number(len(headers))
        for name, value in headers:
            if not isinstance(name, str):
                raise TypeError(f"a header's name is a str, not {type(name).__name__}")
            text = PyUnicode_AsUTF8AndSize(name, &size)
            self.scratch_bytes(<const uint8_t *>text, size)
            if value is None:
                self.scratch_number(-1)
            else:
                view = View(value)
                self.scratch_bytes(view.data, view.size)
        return 0

    cdef inline int put(
        self,
        int64_t timestamp,
        const uint8_t *key,
        Py_ssize_t key_size,
        const uint8_t *value,
        Py_ssize_t value_size,
        const uint8_t *headers,
        Py_ssize_t headers_size,
    ) except -1:
        """Adds a record; sizes of -1 are nulls. 1 when it is in, 0 when the batch is full."""
        cdef int64_t delta = 0
        cdef Py_ssize_t body, total
        cdef uint64_t count_zigzag = <uint64_t>self.count << 1
        cdef uint64_t key_zigzag = zigzag64(key_size)
        cdef uint64_t value_zigzag = zigzag64(value_size)
        cdef uint64_t delta_zigzag
        cdef uint8_t *p
        if self.count and ottla_sub_overflows(timestamp, self.base_timestamp, &delta):
            raise record_fault(TIMESTAMP, self.count)
        delta_zigzag = zigzag64(delta)
        body = 1 + varint_size(delta_zigzag) + varint_size(count_zigzag) + varint_size(key_zigzag) + varint_size(value_zigzag) + headers_size
        if key_size > 0:
            body += key_size
        if value_size > 0:
            body += value_size
        if body > INT32_MAX or self.count == INT32_MAX:
            raise record_fault(TOO_LONG, self.count)
        total = body + varint_size(<uint64_t>body << 1)
        if self.count and self.used + total > self.size_max:
            return 0
        self.reserve(total)
        p = write_varint(self.data + self.used, <uint64_t>body << 1)
        p[0] = 0
        p = write_varint(p + 1, delta_zigzag)
        p = write_varint(p, count_zigzag)
        p = write_varint(p, key_zigzag)
        if key_size > 0:
            memcpy(p, key, key_size)
            p += key_size
        p = write_varint(p, value_zigzag)
        if value_size > 0:
            memcpy(p, value, value_size)
            p += value_size
        memcpy(p, headers, headers_size)
        self.used += total
        if not self.count:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        return 1

    cdef int put_objects(self, int64_t timestamp, key, value, tuple headers) except -1:
        cdef View key_view = None
        cdef View value_view = None
        cdef const uint8_t *key_data = NULL
        cdef const uint8_t *value_data = NULL
        cdef Py_ssize_t key_size = -1, value_size = -1
        cdef uint8_t zero = 0
        if PyBytes_CheckExact(key):
            key_data = <const uint8_t *>PyBytes_AS_STRING(key)
            key_size = PyBytes_GET_SIZE(key)
        elif key is not None:
            key_view = View(key)
            key_data = key_view.data
            key_size = key_view.size
        if PyBytes_CheckExact(value):
            value_data = <const uint8_t *>PyBytes_AS_STRING(value)
            value_size = PyBytes_GET_SIZE(value)
        elif value is not None:
            value_view = View(value)
            value_data = value_view.data
            value_size = value_view.size
        if headers:
            self.encode_headers(headers)
            return self.put(timestamp, key_data, key_size, value_data, value_size, self.scratch, self.scratch_used)
        return self.put(timestamp, key_data, key_size, value_data, value_size, &zero, 1)

    def append(self, int64_t timestamp_ms, key, value, headers=()):
        """See ``_pure.Builder.append``."""
        if self.buffer is None:
            raise ValueError("this batch is finished")
        if self.put_objects(timestamp_ms, key, value, headers if type(headers) is tuple else tuple(headers)):
            return self.count - 1
        return None

    def extend(self, timestamps, keys, values, Py_ssize_t first=0):
        """See ``_pure.Builder.extend``."""
        # Tuples, since reading an exotic value may run code that changes a list under the loop.
        cdef tuple value_tuple = tuple(values)
        cdef tuple key_tuple = None if keys is None else tuple(keys)
        cdef tuple stamps = None
        cdef int64_t timestamp = 0
        cdef Py_ssize_t index, size = len(value_tuple)
        cdef tuple none = ()
        cdef uint8_t zero = 0
        cdef object value
        if self.buffer is None:
            raise ValueError("this batch is finished")
        if isinstance(timestamps, int):
            timestamp = timestamps
        else:
            stamps = tuple(timestamps)
        if first < 0 or (stamps is not None and len(stamps) < size) or (key_tuple is not None and len(key_tuple) < size):
            raise IndexError("there are fewer timestamps or keys than values")
        for index in range(first, size):
            if stamps is not None:
                timestamp = stamps[index]
            value = value_tuple[index]
            if key_tuple is None and PyBytes_CheckExact(value):
                if not self.put(timestamp, NULL, -1, <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), &zero, 1):
                    return index
            elif not self.put_objects(timestamp, None if key_tuple is None else key_tuple[index], value, none):
                return index
        return size

    def take(self):
        """See ``_pure.Builder.take``."""
        if self.buffer is None:
            raise ValueError("this batch is finished")
        batch = self.buffer
        self.buffer = None
        self.data = NULL
        PyByteArray_Resize(batch, self.used)
        return batch
