# Part of _native.pyx: open batches, and the way of each record into one.

from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object thing)
    bint PyTuple_CheckExact(object thing)
    bint PyList_CheckExact(object thing)


cdef class Lane:
    """The open batch of one partition, and whose it is."""

    cdef Builder builder
    cdef object owner


cdef class Topic:
    """The partitions of one topic, and where its records without a key go."""

    cdef list lanes
    cdef Py_ssize_t here
    cdef Py_ssize_t left
    cdef Py_ssize_t least

    def __cinit__(self):
        self.lanes = []
        self.here = -1


cdef bint plain_headers(object headers):
    """Whether these are pairs of exactly str and bytes, in lists and tuples: reading them runs nobody's code."""
    cdef object pair, name, value
    for pair in headers:
        if not PyTuple_CheckExact(pair) or PyTuple_GET_SIZE(pair) != 2:
            return False
        name = <object>PyTuple_GET_ITEM(pair, 0)
        value = <object>PyTuple_GET_ITEM(pair, 1)
        if not PyUnicode_CheckExact(name) or not (value is None or PyBytes_CheckExact(value)):
            return False
    return True


cdef class OpenBatches:
    """See ``_pure_open.OpenBatches``."""

    cdef dict topics
    cdef object give
    cdef object clock_ns
    cdef bint ignore_keys
    cdef readonly Py_ssize_t used
    cdef readonly Py_ssize_t limit

    def __init__(self, Py_ssize_t limit, give, clock_ns, bint ignore_keys=False):
        self.topics = {}
        self.limit = limit
        self.give = give
        self.clock_ns = clock_ns
        self.ignore_keys = ignore_keys

    def charge(self, Py_ssize_t size):
        self.used += size

    cdef Topic find(self, topic):
        cdef PyObject *found = PyDict_GetItem(self.topics, topic)
        return None if found == NULL else <Topic>found

    def resize(self, str topic not None, Py_ssize_t count):
        cdef Topic found = self.find(topic)
        if found is None:
            found = self.topics[topic] = Topic()
        if PyList_GET_SIZE(found.lanes) != count:
            found.lanes = [found.lanes[index] if index < PyList_GET_SIZE(found.lanes) else None for index in range(count)]
            if found.here >= count:
                found.here = -1

    def forget(self, str topic not None):
        self.topics.pop(topic, None)

    def open(self, str topic not None, Py_ssize_t partition, Builder builder not None, owner):
        cdef Topic found = self.find(topic)
        cdef Lane lane
        if found is not None and 0 <= partition < PyList_GET_SIZE(found.lanes):
            lane = Lane()
            lane.builder = builder
            lane.owner = owner
            found.lanes[partition] = lane

    def shut(self, str topic not None, Py_ssize_t partition):
        cdef Topic found = self.find(topic)
        if found is not None and 0 <= partition < PyList_GET_SIZE(found.lanes):
            found.lanes[partition] = None

    def stick(self, str topic not None, Py_ssize_t partition, Py_ssize_t left, Py_ssize_t least):
        cdef Topic found = self.find(topic)
        if found is not None:
            found.here = partition if partition < PyList_GET_SIZE(found.lanes) else -1
            found.left = left
            found.least = least

    def stuck(self, str topic not None):
        cdef Topic found = self.find(topic)
        if found is None:
            return -1, 0
        return found.here, found.left

    def spend(self, str topic not None, Py_ssize_t size):
        cdef Topic found = self.find(topic)
        if found is not None:
            found.left -= size

    def put(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None):
        cdef Topic found
        cdef Lane lane
        cdef Builder builder
        cdef PyObject *item
        cdef Py_ssize_t index, grown
        cdef bint keyless = False
        cdef int64_t stamp
        cdef uint8_t zero = 0
        cdef const uint8_t *header_data = &zero
        cdef Py_ssize_t header_size = 1
        # Everything that may run other code comes first: from the look-up on, this is one step for all threads.
        stamp = <int64_t>self.clock_ns() // 1000000 if timestamp_ms is None else timestamp_ms
        if not PyUnicode_CheckExact(topic):
            return None
        if not (value is None or PyBytes_CheckExact(value)) or not (key is None or PyBytes_CheckExact(key)):
            return None
        if headers is not None:
            if not (PyTuple_CheckExact(headers) or PyList_CheckExact(headers)) or not plain_headers(headers):
                return None
        item = PyDict_GetItem(self.topics, topic)
        if item == NULL or self.used >= self.limit:
            return None
        found = <Topic>item
        if partition is not None:
            index = partition
        elif key is None or self.ignore_keys:
            keyless = True
            index = found.here
            if found.left <= found.least:
                return None
        elif PyList_GET_SIZE(found.lanes):
            index = (murmur(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & 0x7FFFFFFF) % PyList_GET_SIZE(found.lanes)
        else:
            return None
        if index < 0 or index >= PyList_GET_SIZE(found.lanes):
            return None
        item = <PyObject *>PyList_GET_ITEM(found.lanes, index)
        if <object>item is None:
            return None
        lane = <Lane>item
        builder = lane.builder
        if builder.buffer is None:
            return None
        if headers:
            builder.encode_headers(headers if PyTuple_CheckExact(headers) else tuple(headers))
            header_data = builder.scratch
            header_size = builder.scratch_used
        grown = builder.used
        if not builder.put(
            stamp,
            NULL if key is None else <const uint8_t *>PyBytes_AS_STRING(key),
            -1 if key is None else PyBytes_GET_SIZE(key),
            NULL if value is None else <const uint8_t *>PyBytes_AS_STRING(value),
            -1 if value is None else PyBytes_GET_SIZE(value),
            header_data,
            header_size,
        ):
            return None
        grown = builder.used - grown
        self.used += grown
        if keyless:
            found.left -= grown
        return self.give(lane.owner, builder.count - 1, stamp)
