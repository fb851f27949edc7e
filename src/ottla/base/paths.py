"""Paths of files and directories that users give: local ones. An address such as ``s3://bucket/x`` is refused by name.

Python takes ``s3://bucket/x`` for the relative path ``s3:/bucket/x`` and makes a local directory of it. So each place that takes a path
asks `local_path` first, before anything is created. ``file:///data`` is the same as ``/data``.
"""

import re
from urllib.parse import unquote

ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
OBJECT_STORES = ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "adl", "az", "azure", "wasb", "wasbs", "oss", "r2")
FILE_SYSTEMS = ("hdfs", "webhdfs", "swebhdfs", "viewfs", "dbfs", "maprfs")
KINDS = {**dict.fromkeys(OBJECT_STORES, "object stores"), **dict.fromkeys(FILE_SYSTEMS, "distributed file systems")}


class NotLocal(ValueError):
    """A path that is the address of something remote."""


def local_path(text: str) -> str:
    """The path that `text` means, without ``file://``. Raises: NotLocal."""
    address = ADDRESS.match(text)
    if address is None:
        return text
    scheme, rest = address["scheme"].lower(), address["rest"]
    if scheme != "file":
        kind = KINDS.get(scheme, "addresses")
        raise NotLocal(
            f"{shown(text)} is not a local path: {kind} ({scheme}://) are not supported; name a local or mounted directory or file"
        )
    host, slash, below = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise NotLocal(f"{shown(text)} names another machine; write file:///PATH, or the path alone")
    return unquote(slash + below)


def shown(text: str) -> str:
    """The address without a password that may be in it."""
    return re.sub(r"//[^/@]*@", "//", text)
