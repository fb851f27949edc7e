"""Builds the record codec. Everything else about the package stands in pyproject.toml.

The extension is optional: where there is no C compiler the package installs without it and
``ottla.records`` uses its pure-Python twin. ``OTTLA_REQUIRE_NATIVE=1`` turns a failed build into an error.
"""

import os

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize
except ImportError:  # An old pip without build isolation: install the pure-Python package.
    extensions = []
else:
    extensions = cythonize(
        [Extension("ottla.records._native", ["src/ottla/records/_native.pyx"], extra_compile_args=["-O3"])],
        language_level=3,
    )
    for extension in extensions:
        # cythonize() builds new Extension objects and drops the flag, so it is set on its result.
        extension.optional = not os.environ.get("OTTLA_REQUIRE_NATIVE")

setup(ext_modules=extensions)
