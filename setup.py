"""Builds the compiled modules: the codecs, and, in wheels, the modules of the request path.

``records/_native.pyx`` has a pure-Python twin. ``codecs/_native.pyx`` has none; its callers convert value by value without it. The
modules of ``HOT`` are compiled from their Python source, which saves about a third of the CPU of a small request. An editable install
leaves them out, because a compiled module would hide later edits of its source.

Without a C compiler the package installs without compiled modules. With ``OTTLA_REQUIRE_NATIVE=1`` a failed build is an error.
"""

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from Cython.Build import cythonize
except ImportError:  # An old pip without build isolation: install the pure-Python package.
    cythonize = None

#: From the socket to the log and back.
HOT = """
    net/server_connection net/connection_context net/egress net/tls/transport net/tls/tls_socket server/environment server/shell server/request_decoder server/metrics/request_times server/metrics/histogram server/flight_recorder server/performer server/flusher
    server/disk wire/framing wire/compile broker/node broker/isolation broker/context broker/handlers broker/replica/partitions broker/delayed broker/replica/leader
    broker/replica/fetch_sessions broker/storage/periodic_tasks broker/apis/k00_produce broker/apis/k01_fetch broker/apis/k03_metadata broker/apis/partition_leaders broker/security/authorizer
    records/batch records/validation log/log log/state log/segment log/index log/flush log/unflushed log/producer_state log/leader_epochs
""".split()


def translated(extensions: list[Extension], **how: object) -> list[Extension]:
    """As C, ready to be compiled or left out."""
    made = cythonize(extensions, language_level=3, **how)
    for extension in made:
        # cythonize() builds new Extension objects and drops the flag, so it is set on its result.
        extension.optional = not os.environ.get("OTTLA_REQUIRE_NATIVE")
    return made


def hot_modules() -> list[Extension]:
    """Types in annotations are for readers and mypy: nothing changes its meaning by being compiled."""
    found = [Extension(f"ottla.{name.replace('/', '.')}", [f"src/ottla/{name}.py"], extra_compile_args=["-O2", "-g0"]) for name in HOT]
    return translated(found, build_dir="build/hot", compiler_directives={"annotation_typing": False})


class BuildExtensions(build_ext):
    """Adds the hot modules unless the results would lie beside their sources."""

    def finalize_options(self) -> None:
        # An editable install asks for the command once before it says that it is one.
        self.distribution.ext_modules = list(ALWAYS)
        if cythonize is not None and not (self.inplace or self.editable_mode):
            self.distribution.ext_modules += hot_modules()
            self.parallel = self.parallel or os.cpu_count()
        super().finalize_options()


codecs = [
    Extension(f"ottla.{package}._native", [f"src/ottla/{package}/_native.pyx"], extra_compile_args=["-O3"])
    for package in ("records", "codecs")
]
ALWAYS = translated(codecs) if cythonize is not None else []
setup(ext_modules=ALWAYS, cmdclass={"build_ext": BuildExtensions})
