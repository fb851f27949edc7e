"""Which objects of a broker only the garbage collector frees."""

import gc
from collections.abc import Callable
from types import FunctionType, GeneratorType

#: A broker and what no client uses: threads of clients that other tests left may make garbage meanwhile.
COUNTED = ("ottla.broker.", "ottla.log.", "ottla.store.", "cluster.")


def garbage_of(act: Callable[[], object]) -> list[str]:
    """What an act of a broker leaves to the garbage collector.

    Objects of others do not count: a thread of an earlier test may still be ending, and frees what that test made.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        act()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return sorted(name for one in gc.garbage if (name := origin_of(one)).startswith(COUNTED))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()


def origin_of(one: object) -> str:
    """Module and name of a function or a generator, else of the type of an object."""
    if isinstance(one, GeneratorType):
        return f"{one.gi_frame.f_globals['__name__'] if one.gi_frame is not None else ''}.{one.__qualname__}"
    named = one if isinstance(one, FunctionType) else type(one)
    return f"{named.__module__}.{named.__qualname__}"
