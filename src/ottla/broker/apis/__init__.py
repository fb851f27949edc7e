"""One file per Kafka API, numbered by its key: the list of files is the coverage table. Importing this package registers every handler."""

from importlib import import_module
from pkgutil import iter_modules

for _module in sorted(module.name for module in iter_modules(__path__)):
    if _module.startswith("k"):
        import_module(f"{__name__}.{_module}")
