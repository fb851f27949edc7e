"""One module per Kafka API, numbered by its key. Importing this package registers all handlers."""

from importlib import import_module
from pkgutil import iter_modules

from ottla.broker.handlers import HANDLERS

__all__ = ["HANDLERS"]

for _module in sorted(module.name for module in iter_modules(__path__)):
    if _module.startswith("k"):
        import_module(f"{__name__}.{_module}")
