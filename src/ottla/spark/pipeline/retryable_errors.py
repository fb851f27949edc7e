"""Trouble that passes: brokers away, a leader on the move, a Python worker that was killed. The query is started again after a while, from
its checkpoint, as a restart of the whole pipeline would; anything else ends the pipeline.

What a query raised comes from a Python process through Java as text, so it is known by the names of the classes in it.
"""

import re
from collections.abc import Iterator
from typing import Any

from ottla.client import errors as client_errors
from ottla.wire import errors as wire_errors

#: The wait doubles from the first to the last, and begins anew after a batch that ended well.
FIRST_WAIT_S, LAST_WAIT_S = 1.0, 30.0
#: Trouble for so long without one batch ends the pipeline.
GIVE_UP_S = 600.0
#: Of Python, of `ottla.lake`, of the source, and of Java when a Python process at the other end is gone.
PASSING = {
    "TimeoutError", "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError",
    "Overtaken", "RegistryBusy",
    "EOFException", "SocketException", "ClosedChannelException",
}  # fmt: skip
#: Of Spark, about its Python processes; of Java, when such a process was at the other end of a Unix domain socket.
PASSING_TEXTS = (
    "Python worker exited unexpectedly", "Python worker failed to connect back",
    "java.io.IOException: Broken pipe", "java.io.IOException: Connection reset by peer",
)  # fmt: skip
RAISED = re.compile(r"^\s*(?:[\w.]+\.)?([A-Z]\w+)(?:: |$)", re.MULTILINE)


def passes(text: str) -> bool:
    """Whether what a query ended with, as Spark tells it at length, may be gone after a while."""
    names = {match[1] for match in RAISED.finditer(text)}
    return bool(names & (_passing() | PASSING)) or any(told in text for told in PASSING_TEXTS)


def at_length(error: Any) -> str:
    """What a query ended with: as Spark tells it, and what Java had raised, of which Spark may tell the message without the class."""
    cause = getattr(error, "_cause", None)
    return "\n".join(filter(None, (str(error), str(cause or ""), getattr(cause, "_stackTrace", None))))


def waits_s() -> Iterator[float]:
    """How long to wait before each new start."""
    wait_s = FIRST_WAIT_S
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, LAST_WAIT_S)


def _passing() -> set[str]:
    kafka = {one.__name__ for one in wire_errors.BY_CODE.values() if one.retriable}
    ours = {name for name, one in vars(client_errors).items() if isinstance(one, type) and getattr(one, "retriable", False)}
    return kafka | ours
