"""Kernel namespaces: a run can break networks and fill disks in them, and leaves nothing behind.

The run itself enters its own namespaces, as process 1: its network has only a loopback, its mounts are private,
and at its end, however it ends, the kernel ends every process in them and removes links and file systems.

Inside, each broker can have its own network, and the run is the router between them::

    10.77.1.2  broker 1 ──┐                    cut: the router drops packets from one address to another;
    10.77.2.2  broker 2 ──┼── router, clients     both ends get no error
    10.77.3.2  broker 3 ──┤                    unplugged: the link of one location is down, for its clients too
    10.77.9.2  ZooKeeper ─┘

Allowed for root, and for users where the kernel allows user namespaces. Needs util-linux and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

#: Set in the environment of a run that is in its own namespaces.
INSIDE = "OTTLA_CHAOS_INSIDE"
TOOLS = ("unshare", "nsenter", "ip", "mount", "umount")
OWN = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_ROOT = ("--user", "--map-root-user")


class NotPermitted(RuntimeError):
    """This machine does not allow namespaces; the message has the reason."""


def enter() -> str | None:
    """Re-execute this program in its own namespaces. Returns only inside, or with the reason why it is not possible."""
    if os.environ.get(INSIDE):
        _run("ip", "link", "set", "lo", "up")
        return None
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found; util-linux and iproute2 have them"
    said = ""
    for rights in ((), AS_ROOT):
        command = ["unshare", *rights, *OWN]
        # Try what is needed: a kernel may lack links or rules, or forbid them.
        trial = "ip link set lo up && ip link add trial type veth peer name other && ip rule add from 10.77.0.1 to 10.77.0.2 blackhole"
        tried = subprocess.run([*command, "sh", "-c", trial], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            os.environ[INSIDE] = "1"
            sys.stdout.flush()
            os.execvp(command[0], [*command, sys.executable, *sys.orig_argv[1:]])
        said = said or tried.stderr.strip().replace("\n", "; ")
    return f"namespaces of its own are not permitted: {said}"


class Location:
    """Network location of a process. The command prefix starts a process in it."""

    def __init__(self, name: str, address: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        self.name = name
        self.address = address
        self.prefix = list(prefix)


class Network:
    """Locations with links to this run, which routes between them."""

    def __init__(self) -> None:
        self._locations: dict[str, tuple[Location, str, subprocess.Popen[bytes]]] = {}
        self._rules: list[list[str]] = []
        self._unplugged: list[str] = []
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def location(self, name: str, number: int) -> Location:
        """Create a location at 10.77.NUMBER.2."""
        # A network namespace lives as long as a process is in it; this process ends with its input.
        holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        link, near, far = f"chaos{number}", f"10.77.{number}.1", f"10.77.{number}.2"
        prefix = ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"]
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "address", "add", f"{near}/30", "dev", link)
        _run("ip", "link", "set", link, "up")
        _run(*prefix, "ip", "address", "add", f"{far}/30", "dev", "eth0")
        _run(*prefix, "ip", "link", "set", "eth0", "up")
        _run(*prefix, "ip", "link", "set", "lo", "up")
        _run(*prefix, "ip", "route", "add", "default", "via", near)
        made = Location(name, far, prefix)
        self._locations[name] = made, link, holder
        return made

    def cut(self, one: Location, other: Location, *, one_way: bool = False) -> None:
        """Drop packets from ``one`` to ``other``, and unless ``one_way`` also the other direction."""
        for source, target in [(one, other)] if one_way else [(one, other), (other, one)]:
            rule = ["from", source.address, "to", target.address, "blackhole"]
            if rule not in self._rules:
                _run("ip", "rule", "add", *rule)
                self._rules.append(rule)

    def unplug(self, location: Location) -> None:
        """Set the link of a location down."""
        link = self._locations[location.name][1]
        if link not in self._unplugged:
            _run("ip", "link", "set", link, "down")
            self._unplugged.append(link)

    def heal(self) -> None:
        """Remove all network faults."""
        while self._rules:
            _run("ip", "rule", "del", *self._rules.pop())
        while self._unplugged:
            _run("ip", "link", "set", self._unplugged.pop(), "up")

    def close(self) -> None:
        """End the holder processes; the kernel removes the links."""
        for _, _, holder in self._locations.values():
            holder.kill()
            holder.communicate()


@contextlib.contextmanager
def small_disk(location: Path, size_bytes: int) -> Iterator[Path]:
    """Mount an empty file system of a size, in memory. Raises: NotPermitted."""
    location.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(location)], capture_output=True, text=True)
    if mounted.returncode != 0:
        raise NotPermitted(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield location
    finally:
        subprocess.run(["umount", "-l", str(location)], check=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip()}")
