"""pyarrow, which comes with the extra `arrow`: `pa` and `pc` import it when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


def needed_arrow() -> Any:
    """pyarrow. Raises: ImportError with the command that installs it."""
    return _needed("pyarrow")


def _needed(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError("Arrow tables need pyarrow: pip install 'ottla[arrow]'") from error


class OptionalModule:
    """A module of pyarrow that is imported with the first attribute. Raises: as `needed_arrow`."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(_needed(self._module), name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa, pc = OptionalModule("pyarrow"), OptionalModule("pyarrow.compute")

__all__ = ["OptionalModule", "needed_arrow", "pa", "pc"]
