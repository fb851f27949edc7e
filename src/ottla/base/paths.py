"""Validates that users' paths are local. A remote address such as ``s3://bucket/x`` is refused.

Python treats ``s3://bucket/x`` as the relative path ``s3:/bucket/x`` and would create a local directory. So code that takes a path from a
user calls `local_path` before it creates anything. ``file:///data`` is the same as ``/data``.
"""

import re
from urllib.parse import unquote

ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
OBJECT_STORES = ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "adl", "az", "azure", "wasb", "wasbs", "oss", "r2")
FILE_SYSTEMS = ("hdfs", "webhdfs", "swebhdfs", "viewfs", "dbfs", "maprfs")
KINDS = {**dict.fromkeys(OBJECT_STORES, "object stores"), **dict.fromkeys(FILE_SYSTEMS, "distributed file systems")}


#: Those that `ottla.lake.storage` opens, and how its libraries call them.
OPENED = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az", "abfs": "abfs", "abfss": "abfss"}


class NotLocal(ValueError):
    """The path is a remote address."""


def local_path(text: str) -> str:
    """The local path, without ``file://``. Raises: NotLocal."""
    address = ADDRESS.match(text)
    if address is None:
        return text
    scheme, rest = address["scheme"].lower(), address["rest"]
    if scheme != "file":
        kind = KINDS.get(scheme, "addresses")
        raise NotLocal(
            f"{redacted(text)} is not a local path: {kind} ({scheme}://) are not supported; name a local or mounted directory or file"
        )
    host, slash, below = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise NotLocal(f"{redacted(text)} names another machine; write file:///PATH, or the path alone")
    return unquote(slash + below)


def is_object_url(text: str) -> bool:
    """Whether the text is an address of an object store that tables, exports and loads can open."""
    address = ADDRESS.match(text)
    return address is not None and address["scheme"].lower() in OPENED


def redacted(text: str) -> str:
    """The address without user name and password."""
    return re.sub(r"//[^/@]*@", "//", text)
