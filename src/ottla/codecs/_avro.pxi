# Part of codecs/_native.pyx: values in Avro's binary form into Arrow's layout, row by row into one column per leaf of the schema.
#
# A schema is a tree of cells, each of which reads one value and appends it to its own buffers. A row that turns out not to be of the
# schema is taken back by cutting each column to the rows before: a list's items to where its last row ends, and so on down.

cdef enum AvroKind:
    AVRO_NULL = 0
    AVRO_BOOLEAN = 1
    AVRO_INT = 2
    AVRO_LONG = 3
    AVRO_FLOAT = 4
    AVRO_DOUBLE = 5
    AVRO_BYTES = 6
    AVRO_FIXED = 7
    AVRO_ENUM = 8
    AVRO_ARRAY = 9
    AVRO_MAP = 10
    AVRO_RECORD = 11
    AVRO_DECIMAL = 12

cdef enum:
    AVRO_FAULT = 100
    DECIMAL_BYTES = 16


cdef class Growing:
    """A buffer that grows by what is appended."""

    cdef uint8_t *data
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.data)

    cdef inline uint8_t *more(self, Py_ssize_t size) except NULL:
        """Room for so many bytes, which count as used."""
        cdef Py_ssize_t wanted = self.used + size
        cdef uint8_t *grown
        if wanted > self.capacity or self.data == NULL:
            wanted = max(2 * wanted, 1024)
            grown = <uint8_t *>realloc(self.data, wanted)
            if grown == NULL:
                raise MemoryError
            self.data = grown
            self.capacity = wanted
        self.used += size
        return self.data + self.used - size

    cdef bytes taken(self):
        return PyBytes_FromStringAndSize(<const char *>self.data, self.used)


cdef class AvroCell:
    """One node of a schema: (kind, null's index in its union or -1, parameter, children)."""

    cdef int kind
    cdef int null_index
    # Bytes of a fixed or of a decimal that is one; 0: a decimal of bytes.
    cdef Py_ssize_t width
    cdef list symbols
    cdef list children
    cdef Py_ssize_t count
    cdef Py_ssize_t nulls
    # A byte per row.
    cdef Growing valid
    # Numbers of fixed width, or the ends of what is not.
    cdef Growing fixed
    cdef Growing data

    def __cinit__(self, tuple spec):
        self.kind, self.null_index, parameter, children = spec
        self.symbols = list(parameter) if self.kind == AVRO_ENUM else []
        self.width = 0 if self.kind == AVRO_ENUM else parameter
        self.children = [AvroCell(child) for child in children]
        self.valid = Growing()
        self.fixed = Growing()
        self.data = Growing()
        if self.has_ends():
            memset(self.fixed.more(4), 0, 4)

    cdef inline bint has_ends(self):
        return self.kind == AVRO_BYTES or self.kind == AVRO_FIXED or self.kind == AVRO_ENUM or self.kind == AVRO_ARRAY or self.kind == AVRO_MAP

    cdef inline Py_ssize_t fixed_width(self):
        if self.kind == AVRO_BOOLEAN:
            return 1
        if self.kind == AVRO_INT or self.kind == AVRO_FLOAT:
            return 4
        if self.kind == AVRO_LONG or self.kind == AVRO_DOUBLE:
            return 8
        return DECIMAL_BYTES if self.kind == AVRO_DECIMAL else 0

    cdef int end_row(self, Py_ssize_t end) except -1:
        cdef int32_t narrow
        if end > INT32_MAX:
            raise OverflowError("a column of Avro values is larger than 2 GiB")
        narrow = <int32_t>end
        memcpy(self.fixed.more(4), &narrow, 4)
        return 0

    cdef int null(self) except -1:
        cdef AvroCell child
        cdef Py_ssize_t width = self.fixed_width()
        self.valid.more(1)[0] = 0
        self.nulls += 1
        self.count += 1
        if width:
            memset(self.fixed.more(width), 0, width)
        elif self.kind == AVRO_RECORD:
            for child in self.children:
                child.null()
        elif self.kind == AVRO_ARRAY or self.kind == AVRO_MAP:
            self.end_row((<AvroCell>self.children[0]).count)
        elif self.has_ends():
            self.end_row(self.data.used)
        return 0

    cdef int truncate(self, Py_ssize_t rows) except -1:
        """Take back what is behind so many rows."""
        cdef AvroCell child
        cdef Py_ssize_t row
        cdef int32_t end = 0
        for row in range(rows, self.count):
            self.nulls -= self.valid.data[row] == 0
        self.count = min(self.count, rows)
        self.valid.used = self.count
        if self.has_ends():
            self.fixed.used = 4 * (self.count + 1)
            memcpy(&end, self.fixed.data + 4 * self.count, 4)
            self.data.used = end if not self.children else 0
        else:
            self.fixed.used = self.count * self.fixed_width()
        for child in self.children:
            child.truncate(end if self.has_ends() else self.count)
        return 0

    cdef int read(self, const uint8_t **cursor, const uint8_t *stop) except -1:
        """One value; FINE, or a fault after which only ``truncate`` may follow."""
        cdef int64_t index = 0
        cdef int fault
        if self.null_index >= 0:
            fault = read64(cursor, stop, &index)
            if fault or index < 0 or index > 1:
                return AVRO_FAULT
            if index == self.null_index:
                return self.null()
        if self.kind == AVRO_NULL:
            return self.null()
        fault = self.read_value(cursor, stop)
        if fault:
            return fault
        self.valid.more(1)[0] = 1
        self.count += 1
        return FINE

    cdef int read_value(self, const uint8_t **cursor, const uint8_t *stop) except -1:
        cdef int64_t number = 0
        cdef int32_t narrow
        cdef Py_ssize_t width
        cdef AvroCell child
        cdef bytes symbol
        cdef int fault
        if self.kind == AVRO_INT or self.kind == AVRO_LONG:
            if read64(cursor, stop, &number):
                return AVRO_FAULT
            if self.kind == AVRO_LONG:
                memcpy(self.fixed.more(8), &number, 8)
                return FINE
            narrow = <int32_t>number
            if narrow != number:
                return AVRO_FAULT
            memcpy(self.fixed.more(4), &narrow, 4)
            return FINE
        if self.kind == AVRO_BYTES or (self.kind == AVRO_DECIMAL and not self.width):
            if read64(cursor, stop, &number) or number < 0 or number > stop - cursor[0]:
                return AVRO_FAULT
            return self.take_bytes(cursor, <Py_ssize_t>number)
        if self.kind == AVRO_FIXED or self.kind == AVRO_DECIMAL:
            if self.width > stop - cursor[0]:
                return AVRO_FAULT
            return self.take_bytes(cursor, self.width)
        if self.kind == AVRO_RECORD:
            for child in self.children:
                fault = child.read(cursor, stop)
                if fault:
                    return fault
            return FINE
        if self.kind == AVRO_ENUM:
            if read64(cursor, stop, &number) or number < 0 or number >= len(self.symbols):
                return AVRO_FAULT
            symbol = self.symbols[number]
            memcpy(self.data.more(len(symbol)), PyBytes_AS_STRING(symbol), len(symbol))
            return self.end_row(self.data.used)
        if self.kind == AVRO_ARRAY or self.kind == AVRO_MAP:
            return self.read_items(cursor, stop)
        width = self.fixed_width()
        if width > stop - cursor[0] or (self.kind == AVRO_BOOLEAN and cursor[0][0] > 1):
            return AVRO_FAULT
        memcpy(self.fixed.more(width), cursor[0], width)
        cursor[0] += width
        return FINE

    cdef int take_bytes(self, const uint8_t **cursor, Py_ssize_t size) except -1:
        cdef uint8_t *target
        cdef Py_ssize_t index
        cdef const uint8_t *source = cursor[0]
        cursor[0] += size
        if self.kind != AVRO_DECIMAL:
            memcpy(self.data.more(size), source, size)
            return self.end_row(self.data.used)
        if size > DECIMAL_BYTES:
            return AVRO_FAULT
        target = self.fixed.more(DECIMAL_BYTES)
        memset(target, 0xFF if size and source[0] & 0x80 else 0, DECIMAL_BYTES)
        for index in range(size):
            target[size - 1 - index] = source[index]
        return FINE

    cdef int read_items(self, const uint8_t **cursor, const uint8_t *stop) except -1:
        """An array, or a map, whose first child is its names and the second its values: blocks of items until one of none."""
        cdef int64_t items = 0, size = 0, index
        cdef AvroCell child
        cdef int fault
        while True:
            if read64(cursor, stop, &items) or items == INT64_MIN:
                return AVRO_FAULT
            if not items:
                return self.end_row((<AvroCell>self.children[0]).count)
            if items < 0:
                items = -items
                if read64(cursor, stop, &size) or size < 0 or size > stop - cursor[0]:
                    return AVRO_FAULT
            if items > stop - cursor[0]:
                # Each item takes a byte at least; of nulls, which take none, any number could be claimed.
                return AVRO_FAULT
            for index in range(items):
                for child in self.children:
                    fault = child.read(cursor, stop)
                    if fault:
                        return fault

    cdef tuple result(self):
        """(rows, validity or None, nulls, numbers or ends, data, children)"""
        cdef bytearray bits
        cdef Py_ssize_t row
        cdef bytes numbers
        cdef AvroCell child
        valid = None
        if self.nulls:
            bits = bytearray((self.count + 7) // 8)
            for row in range(self.count):
                if self.valid.data[row]:
                    bits[row >> 3] |= 1 << (row & 7)
            valid = bytes(bits)
        if self.kind == AVRO_BOOLEAN:
            bits = bytearray((self.count + 7) // 8)
            for row in range(self.count):
                if self.fixed.data[row]:
                    bits[row >> 3] |= 1 << (row & 7)
            numbers = bytes(bits)
        else:
            numbers = self.fixed.taken()
        return self.count, valid, self.nulls, numbers, self.data.taken(), [child.result() for child in self.children]


def decode_avro(tuple spec, values, Py_ssize_t rows, bytes prefix):
    """The rows of a binary column as columns of an Avro schema, and the numbers of those that are not of it, which are null.

    ``values`` is (offsets, data, validity, wide); each value begins with ``prefix``. Raises: InvalidBatch where the column's offsets point
    outside of its data, OverflowError above 2 GiB.
    """
    cdef Column column = binary_column(values)
    cdef AvroCell root = AvroCell(spec)
    cdef Py_ssize_t row, size = -1, prefix_size = len(prefix)
    cdef const uint8_t *data = NULL
    cdef const uint8_t *stop
    cdef list bad = []
    for row in range(rows):
        column.locate(row, &data, &size)
        if size < 0:
            root.null()
            continue
        stop = data + size
        if size < prefix_size or memcmp(data, PyBytes_AS_STRING(prefix), prefix_size):
            bad.append(row)
            root.null()
            continue
        data += prefix_size
        if root.read(&data, stop) or data != stop:
            root.truncate(row)
            root.null()
            bad.append(row)
    return root.result(), bad


# ---------------------------------------------------------------------------------------------------------------- writing

cdef class AvroSource:
    """One node of a schema with the column that its values come from: (kind, null's index or -1, width, validity, numbers or ends, data,
    children), all from their first row on. What is an enum comes as the numbers of its symbols, below 0 for
    what is none.
    """

    cdef int kind
    cdef int null_index
    cdef Py_ssize_t width
    cdef View valid
    cdef View numbers
    cdef View data
    cdef list children
    cdef Py_ssize_t rows

    def __cinit__(self, tuple spec, Py_ssize_t rows):
        self.kind, self.null_index, self.width, valid, numbers, data, children = spec
        self.valid = None if valid is None else View(valid)
        self.numbers = None if numbers is None else View(numbers)
        self.data = None if data is None else View(data)
        self.rows = rows
        self.children = [AvroSource(child, size) for child, size in children]
        if (self.valid is not None and 8 * self.valid.size < rows) or self.short_of(rows):
            raise IndexError(f"there are less than {rows} rows")

    cdef bint short_of(self, Py_ssize_t rows):
        """Whether the numbers are fewer."""
        cdef Py_ssize_t width = 8
        if self.kind == AVRO_NULL or self.kind == AVRO_RECORD:
            return False
        if self.kind == AVRO_BOOLEAN:
            width = 1
        elif self.kind == AVRO_DECIMAL:
            width = DECIMAL_BYTES
        elif self.kind != AVRO_LONG and self.kind != AVRO_DOUBLE:
            width = 4
            rows += self.kind == AVRO_BYTES or self.kind == AVRO_FIXED or self.kind == AVRO_ARRAY or self.kind == AVRO_MAP
        return self.numbers is None or self.numbers.size // width < rows

    cdef inline bint is_null(self, Py_ssize_t row):
        return self.kind == AVRO_NULL or (self.valid is not None and not self.valid.data[row >> 3] >> (row & 7) & 1)

    cdef int write(self, Py_ssize_t row, Growing out) except -1:
        """One value; a fault for a null where none may be, or a value that does not fit."""
        cdef bint null = self.is_null(row)
        if self.null_index >= 0:
            put_long(out, self.null_index if null else 1 - self.null_index)
            if null:
                return FINE
        elif self.kind == AVRO_NULL:
            return FINE
        elif null:
            return AVRO_FAULT
        return self.write_value(row, out)

    cdef int write_value(self, Py_ssize_t row, Growing out) except -1:
        cdef int32_t narrow = 0
        cdef int64_t broad = 0
        cdef AvroSource child
        cdef int fault
        if self.kind == AVRO_LONG:
            memcpy(&broad, self.numbers.data + 8 * row, 8)
            return put_long(out, broad)
        if self.kind == AVRO_INT or self.kind == AVRO_ENUM:
            memcpy(&narrow, self.numbers.data + 4 * row, 4)
            if self.kind == AVRO_ENUM and narrow < 0:
                return AVRO_FAULT
            return put_long(out, narrow)
        if self.kind == AVRO_DOUBLE:
            memcpy(out.more(8), self.numbers.data + 8 * row, 8)
        elif self.kind == AVRO_FLOAT:
            memcpy(out.more(4), self.numbers.data + 4 * row, 4)
        elif self.kind == AVRO_BOOLEAN:
            out.more(1)[0] = self.numbers.data[row] != 0
        elif self.kind == AVRO_RECORD:
            for child in self.children:
                fault = child.write(row, out)
                if fault:
                    return fault
        elif self.kind == AVRO_DECIMAL:
            return self.write_decimal(self.numbers.data + DECIMAL_BYTES * row, out)
        else:
            return self.write_span(row, out)
        return FINE

    cdef int write_span(self, Py_ssize_t row, Growing out) except -1:
        """Bytes, or the items of a list."""
        cdef int32_t ends[2]
        cdef Py_ssize_t index, limit
        cdef AvroSource child
        cdef int fault
        memcpy(ends, self.numbers.data + 4 * row, 8)
        limit = self.data.size if self.data is not None else (<AvroSource>self.children[0]).rows
        if not 0 <= ends[0] <= ends[1] <= limit:
            return AVRO_FAULT
        if self.kind == AVRO_FIXED and ends[1] - ends[0] != self.width:
            return AVRO_FAULT
        if self.kind == AVRO_BYTES:
            put_long(out, ends[1] - ends[0])
        if self.kind == AVRO_BYTES or self.kind == AVRO_FIXED:
            memcpy(out.more(ends[1] - ends[0]), self.data.data + ends[0], ends[1] - ends[0])
            return FINE
        if ends[1] > ends[0]:
            put_long(out, ends[1] - ends[0])
        for index in range(ends[0], ends[1]):
            for child in self.children:
                fault = child.write(index, out)
                if fault:
                    return fault
        return put_long(out, 0)

    cdef int write_decimal(self, const uint8_t *source, Growing out) except -1:
        """A number of 16 bytes, the least first: as few bytes as it needs, or as many as a fixed has, the greatest first."""
        cdef uint8_t sign = 0xFF if source[DECIMAL_BYTES - 1] & 0x80 else 0
        cdef Py_ssize_t size = DECIMAL_BYTES, index
        cdef uint8_t *target
        while size > 1 and source[size - 1] == sign and (source[size - 2] & 0x80) == (sign & 0x80):
            size -= 1
        if self.width:
            if size > self.width:
                return AVRO_FAULT
            target = out.more(self.width)
            for index in range(self.width):
                target[self.width - 1 - index] = source[index] if index < size else sign
            return FINE
        put_long(out, size)
        target = out.more(size)
        for index in range(size):
            target[size - 1 - index] = source[index]
        return FINE


cdef int put_long(Growing out, int64_t number) except -1:
    cdef uint8_t *start = out.more(10)
    out.used -= 10 - (write_varint(start, zigzag64(number)) - start)
    return FINE


def encode_avro(tuple spec, Py_ssize_t rows, bytes prefix):
    """The rows of a schema's columns in Avro's binary form, each behind ``prefix``, null where the row is: (ends, data), or the number of
    the first row that is not of the schema. Raises: IndexError where rows are not all there, OverflowError above 2 GiB.
    """
    cdef AvroSource root = AvroSource(spec, rows)
    cdef Growing out = Growing()
    cdef Growing ends = Growing()
    cdef Py_ssize_t row
    cdef int32_t end = 0
    memset(ends.more(4), 0, 4)
    for row in range(rows):
        if not root.is_null(row) or root.kind == AVRO_NULL:
            memcpy(out.more(len(prefix)), PyBytes_AS_STRING(prefix), len(prefix))
            if root.null_index >= 0:
                put_long(out, 1 - root.null_index)
            if root.kind != AVRO_NULL and root.write_value(row, out):
                return row
        if out.used > INT32_MAX:
            raise OverflowError("values in Avro's form are more than 2 GiB")
        end = <int32_t>out.used
        memcpy(ends.more(4), &end, 4)
    return ends.taken(), out.taken()
