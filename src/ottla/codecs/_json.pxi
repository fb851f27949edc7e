# Part of _native.pyx: rows of JSON put together from texts of their members.

cdef const char *HEX_DIGITS = "0123456789abcdef"
# What follows the backslash of a byte that JSON does not have as it is; 0: the byte stands for itself, 1: it is written as \u00XX.
cdef uint8_t ESCAPES[256]
memset(ESCAPES, 0, 256)
memset(ESCAPES, 1, 32)
ESCAPES[8], ESCAPES[9], ESCAPES[10], ESCAPES[12], ESCAPES[13] = b"b", b"t", b"n", b"f", b"r"
ESCAPES[34], ESCAPES[92] = 34, 92


cdef class JsonPiece:
    """A part of each row: the same bytes in all, or a column of texts, as they are or in quotes."""

    cdef bytes literal
    cdef Column column
    cdef bint quoted

    def __cinit__(self, piece):
        if isinstance(piece, bytes):
            self.literal = piece
        else:
            self.column = binary_column(piece[0])
            self.quoted = piece[1]

    cdef int write(self, Py_ssize_t row, Growing out) except -1:
        cdef const uint8_t *data = NULL
        cdef Py_ssize_t size = -1
        if self.literal is not None:
            memcpy(out.more(PyBytes_GET_SIZE(self.literal)), PyBytes_AS_STRING(self.literal), PyBytes_GET_SIZE(self.literal))
            return 0
        self.column.locate(row, &data, &size)
        if size < 0:
            memcpy(out.more(4), b"null", 4)
        elif self.quoted:
            write_quoted(data, size, out)
        else:
            memcpy(out.more(size), data, size)
        return 0


cdef int write_quoted(const uint8_t *data, Py_ssize_t size, Growing out) except -1:
    # No byte becomes more than six, so that there is no looking at the room byte by byte.
    cdef uint8_t *start = out.more(6 * size + 2)
    cdef uint8_t *p = start
    cdef Py_ssize_t index, run = 0
    cdef uint8_t escape
    p[0] = 34
    p += 1
    for index in range(size):
        escape = ESCAPES[data[index]]
        if likely(escape == 0):
            continue
        memcpy(p, data + run, index - run)
        p += index - run
        run = index + 1
        p[0] = 92
        p[1] = 117 if escape == 1 else escape
        p += 2
        if escape == 1:
            p[0] = p[1] = 48
            p[2] = HEX_DIGITS[data[index] >> 4]
            p[3] = HEX_DIGITS[data[index] & 15]
            p += 4
    memcpy(p, data + run, size - run)
    p += size - run
    p[0] = 34
    out.used -= 6 * size + 2 - (p + 1 - start)
    return 0


def join_json(Py_ssize_t rows, list pieces, valid):
    """Each row's pieces one after the other: bytes, or (binary column, whether it is to be quoted), where null is ``null``. Rows that are
    null in the bitmap ``valid`` are empty. Gives (ends int32, data).

    Raises: InvalidBatch where a column's offsets point outside of its data, OverflowError above 2 GiB.
    """
    cdef list parts = [JsonPiece(piece) for piece in pieces]
    cdef View bits = None if valid is None else View(valid)
    cdef Growing out = Growing()
    cdef Growing ends = Growing()
    cdef JsonPiece part
    cdef Py_ssize_t row
    cdef int32_t end = 0
    if bits is not None and 8 * bits.size < rows:
        raise IndexError(f"there are less than {rows} rows")
    memset(ends.more(4), 0, 4)
    for row in range(rows):
        if bits is None or bits.data[row >> 3] >> (row & 7) & 1:
            for part in parts:
                part.write(row, out)
        if out.used > INT32_MAX:
            raise OverflowError("rows of JSON are more than 2 GiB")
        end = <int32_t>out.used
        memcpy(ends.more(4), &end, 4)
    return ends.taken(), out.taken()
