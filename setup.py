"""Builds the compiled modules: the codecs, and, in wheels, the modules of the request path.

``records/_native.pyx`` has a pure-Python twin. ``codecs/_native.pyx`` has none; its callers convert value by value without it. The
modules of ``HOT`` and ``WARM`` are compiled from their Python source, which saves about a third of the CPU of a small request. An
editable install leaves them out, because a compiled module would hide later edits of its source.

Without a C compiler the package installs without compiled modules. With ``OTTLA_REQUIRE_NATIVE=1`` a failed build is an error.

Compiled modules have no symbols and no debug information, generated C code is kept below ``build/``, and the times in archives are those
of ``SOURCE_DATE_EPOCH``: two builds of one source give the same bytes (``tools/dist.py``).
"""

import gzip
import os
import sys
import tarfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

try:
    from Cython.Build import cythonize
except ImportError:  # An old pip without build isolation: install the pure-Python package.
    cythonize = None

#: From the socket to the log and back: modules in which a request spends most of its compiled instructions.
HOT = """
    net/server_connection net/egress server/shell server/request_decoder server/metrics/histogram server/flight_recorder server/performer
    server/flusher server/disk wire/framing wire/compile broker/node broker/replica/partitions broker/replica/leader
    broker/replica/fetch_sessions broker/replica/reads broker/apis/k00_produce broker/apis/k01_fetch broker/apis/k03_metadata
    broker/apis/partition_leaders records/batch records/checksum records/validation log/log log/segment
""".split()
#: Also on that path, with few instructions per request or only with TLS, ACLs, quotas and idempotent producers: compiled for size.
WARM = """
    net/connection_context net/tls/transport net/tls/tls_socket server/environment server/metrics/request_times wire/codegen
    broker/isolation broker/context broker/delayed broker/replica/traffic broker/quotas/client_quotas broker/storage/periodic_tasks
    broker/security/authorizer log/state log/index log/flush log/unflushed log/batch_scan log/producer_state
""".split()
#: Nothing unwinds a stack of these modules, and tables for it are a twentieth of their size.
SMALL = ["-g0", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]

#: The linker of macOS removes symbols by other names, and ignores -s.
STRIP = ["-Wl,-S", "-Wl,-x"] if sys.platform == "darwin" else ["-Wl,-s"]


def extension(name: str, source: str, optimisation: str) -> Extension:
    return Extension(name, [source], extra_compile_args=[optimisation, *SMALL], extra_link_args=STRIP)


CODECS = [extension(f"ottla.{package}._native", f"src/ottla/{package}/_native.pyx", "-O3") for package in ("records", "codecs")]


def translated(extensions: list[Extension], **how: object) -> list[Extension]:
    """As C, ready to be compiled or left out."""
    made = cythonize(extensions, language_level=3, **how)
    for extension in made:
        # cythonize() builds new Extension objects and drops the flag, so it is set on its result.
        extension.optional = not os.environ.get("OTTLA_REQUIRE_NATIVE")
    return made


def hot_modules() -> list[Extension]:
    """Types in annotations are for readers and mypy: nothing changes its meaning by being compiled."""
    levels = {**dict.fromkeys(HOT, "-O2"), **dict.fromkeys(WARM, "-Os")}
    found = [extension(f"ottla.{name.replace('/', '.')}", f"src/ottla/{name}.py", level) for name, level in levels.items()]
    return translated(found, build_dir="build/hot", compiler_directives={"annotation_typing": False})


class BuildExtensions(build_ext):
    """Adds the hot modules unless the results would lie beside their sources."""

    def finalize_options(self) -> None:
        # A source distribution only asks for the names of sources, and an editable install asks once before it says that it is one.
        if cythonize is not None and "sdist" not in self.distribution.commands:
            self.distribution.ext_modules = translated(CODECS, build_dir="build/codecs")
            if not (self.inplace or self.editable_mode):
                self.distribution.ext_modules += hot_modules()
                self.parallel = self.parallel or os.cpu_count()
        super().finalize_options()


class SourceDistribution(sdist):
    """Archives without the times, owners and order of the machine that made them."""

    def make_archive(
        self, base_name: str, format: str, root_dir: str | None = None, base_dir: str | None = None, *owners: object, **more: object
    ) -> str:
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if epoch is None or format != "gztar" or base_dir is None:
            return super().make_archive(base_name, format, root_dir, base_dir, *owners, **more)
        path = f"{base_name}.tar.gz"

        def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid, member.gid, member.uname, member.gname, member.mtime = 0, 0, "", "", int(epoch)
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        with open(path, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch)) as packed:
            with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for member in sorted(Path(root_dir or ".", base_dir).rglob("*")):
                    if not member.is_dir():
                        archive.add(member, member.relative_to(root_dir or ".").as_posix(), filter=anonymous)
        return path


setup(ext_modules=[] if cythonize is None else CODECS, cmdclass={"build_ext": BuildExtensions, "sdist": SourceDistribution})
