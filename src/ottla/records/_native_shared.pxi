# Shared by records/_native.pyx and codecs/_native.pyx, which include it: variable-length numbers, buffers, columns that are read.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from ottla.records.errors import InvalidBatch, record_fault

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int _PyBytes_Resize(PyObject **target, Py_ssize_t size) except -1

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define ottla_add_overflows(a, b, out) __builtin_add_overflow((int64_t)(a), (int64_t)(b), out)
    #define ottla_sub_overflows(a, b, out) __builtin_sub_overflow((int64_t)(a), (int64_t)(b), out)
    #else
    static int ottla_add_overflows(int64_t a, int64_t b, int64_t *out) {
        *out = (int64_t)((uint64_t)a + (uint64_t)b);
        return (b >= 0) ? (*out < a) : (*out > a);
    }
    static int ottla_sub_overflows(int64_t a, int64_t b, int64_t *out) {
        *out = (int64_t)((uint64_t)a - (uint64_t)b);
        return (b >= 0) ? (*out > a) : (*out < a);
    }
    #endif
    """
    bint ottla_add_overflows(int64_t a, int64_t b, int64_t *out) noexcept nogil
    bint ottla_sub_overflows(int64_t a, int64_t b, int64_t *out) noexcept nogil
    bint likely(bint condition) noexcept nogil

# The numbers of ottla.records.errors.
cdef enum Fault:
    FINE = 0
    TRUNCATED = 1
    VARINT = 2
    LENGTH = 3
    PAST = 4
    HEADERS = 5
    HEADER_KEY = 6
    UNREAD = 7
    TIMESTAMP = 8
    OFFSET_DELTA = 9
    OFFSET = 10
    TRAILING = 11
    COUNT = 12
    COLUMN = 13
    TOO_LONG = 14
# ---------------------------------------------------------------------------------------------------------------- numbers

cdef int slow32(const uint8_t **cursor, const uint8_t *stop, int32_t *out) noexcept nogil:
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        if p >= stop:
            return TRUNCATED
        byte = p[0]
        p += 1
        value |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= 32:
            return VARINT
    if value >> 32:
        return VARINT
    out[0] = <int32_t>(<uint32_t>value >> 1) ^ -<int32_t>(value & 1)
    cursor[0] = p
    return FINE


cdef int slow64(const uint8_t **cursor, const uint8_t *stop, int64_t *out) noexcept nogil:
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        if p >= stop:
            return TRUNCATED
        byte = p[0]
        p += 1
        if shift == 63 and byte > 1:
            # The tenth byte has one bit left to give, and no byte may follow it.
            return VARINT
        value |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= 64:
            return VARINT
    out[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
    cursor[0] = p
    return FINE


cdef inline int read32(const uint8_t **cursor, const uint8_t *stop, int32_t *out) noexcept nogil:
    cdef const uint8_t *p = cursor[0]
    cdef uint32_t value
    if stop - p >= 2:
        value = p[0]
        if value < 0x80:
            out[0] = <int32_t>(value >> 1) ^ -<int32_t>(value & 1)
            cursor[0] = p + 1
            return FINE
        if p[1] < 0x80:
            value = (value & 0x7F) | (<uint32_t>p[1] << 7)
            out[0] = <int32_t>(value >> 1) ^ -<int32_t>(value & 1)
            cursor[0] = p + 2
            return FINE
    return slow32(cursor, stop, out)


cdef inline int read64(const uint8_t **cursor, const uint8_t *stop, int64_t *out) noexcept nogil:
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t value
    if stop - p >= 2:
        value = p[0]
        if value < 0x80:
            out[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            cursor[0] = p + 1
            return FINE
        if p[1] < 0x80:
            value = (value & 0x7F) | (<uint64_t>p[1] << 7)
            out[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            cursor[0] = p + 2
            return FINE
    return slow64(cursor, stop, out)


cdef inline int varint_size(uint64_t zigzag) noexcept nogil:
    cdef int size = 1
    while zigzag > 0x7F:
        zigzag >>= 7
        size += 1
    return size


cdef inline uint8_t *write_varint(uint8_t *p, uint64_t zigzag) noexcept nogil:
    while zigzag > 0x7F:
        p[0] = <uint8_t>(zigzag & 0x7F | 0x80)
        p += 1
        zigzag >>= 7
    p[0] = <uint8_t>zigzag
    return p + 1


cdef inline uint64_t zigzag64(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


# ---------------------------------------------------------------------------------------------------------------- buffers and columns

cdef class View:
    """Holds a buffer for as long as its pointer is used."""

    cdef Py_buffer view
    cdef const uint8_t *data
    cdef Py_ssize_t size
    cdef bint held

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
        self.held = True
        self.data = <const uint8_t *>self.view.buf
        self.size = self.view.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class Column:
    """A binary or list column that is read: offsets of 32 or 64 bits and, for a list, nothing more; validity where it has nulls."""

    cdef View ends
    cdef View data
    cdef View valid
    cdef bint wide
    cdef Py_ssize_t rows

    def __cinit__(self, ends, data, valid, bint wide):
        self.ends = View(ends)
        self.data = None if data is None else View(data)
        self.valid = None if valid is None else View(valid)
        self.wide = wide
        self.rows = max(self.ends.size // (8 if wide else 4) - 1, 0)
        if self.valid is not None:
            self.rows = min(self.rows, 8 * self.valid.size)

    cdef inline int span(self, Py_ssize_t row, Py_ssize_t limit, int64_t *start, int64_t *stop) noexcept:
        """1 and the span of a row, 0 for a null, -1 where it lies outside of ``[0, limit]``."""
        cdef int32_t narrow[2]
        cdef int64_t broad[2]
        if row < 0 or row >= self.rows:
            return -1
        if self.valid is not None and not self.valid.data[row >> 3] >> (row & 7) & 1:
            return 0
        if self.wide:
            memcpy(broad, self.ends.data + 8 * row, 16)
            start[0] = broad[0]
            stop[0] = broad[1]
        else:
            memcpy(narrow, self.ends.data + 4 * row, 8)
            start[0] = narrow[0]
            stop[0] = narrow[1]
        return 1 if 0 <= start[0] <= stop[0] <= limit else -1

    cdef inline int locate(self, Py_ssize_t row, const uint8_t **data, Py_ssize_t *size) except -1:
        cdef int64_t start = 0, stop = 0
        cdef int found = self.span(row, self.data.size, &start, &stop)
        if found < 0:
            raise record_fault(COLUMN, row)
        if not found:
            data[0] = NULL
            size[0] = -1
        else:
            data[0] = self.data.data + start
            size[0] = stop - start
        return 0


cdef Column binary_column(source):
    if source[1] is None:
        raise TypeError("a binary column has data")
    return Column(*source)
