# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Compiled loops of the Avro and JSON codecs: from and to Arrow's column layout, without a Python object per value.

Where this module is not built, ``avro.py`` uses fastavro and ``json.py`` uses Python's json.
"""

include "../records/_native_shared.pxi"

include "_avro.pxi"
include "_json.pxi"
