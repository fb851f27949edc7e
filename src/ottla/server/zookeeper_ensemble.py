"""A ZooKeeper ensemble of Java processes on this machine, from installed jars.

The jars are those of ``$ZOOKEEPER_HOME/lib``, or those of the pyspark package, which contains ZooKeeper 3.9. Three servers on one machine
survive the failure of a process, not of the machine; ``members`` makes one server of an ensemble on several machines. The servers end with
the process that started them, also when it is killed.

::

    DIR/.lock                   held while any of the servers runs
    DIR/node-N/myid zoo.cfg     written at each start
    DIR/node-N/version-2/       ZooKeeper's transactions and snapshots
    DIR/node-N/output.log       output of the server
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from ottla.server.addresses import Address, address_text
from ottla.server.child_processes import ChildWatcher
from ottla.server.data_directory import CannotStart, LockedDirectory

#: A server starts in less than 1 s, an ensemble in 2 s; a loaded machine takes longer.
READY_S = 30.0
#: Servers of a killed owner are killed at once; a Java process takes a moment to end.
LOCK_TIMEOUT_S = 2.0
#: Default ports between members on several machines; ZooKeeper's convention.
QUORUM_PORT, ELECTION_PORT = 2888, 3888
#: Pause before a server is restarted; it doubles while the server does not run for longer than the longest pause.
PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 30.0
#: A server writes its snapshot and ends in milliseconds.
STOP_S = 10.0
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
#: The jars of Spark that ZooKeeper uses.
JARS = ("zookeeper", "netty-", "slf4j-api", "log4j-", "metrics-core", "snappy-java", "commons-cli", "commons-io", "jackson-", "audience-")
#: Small heap, fast start: a broker's metadata is a few megabytes.
JVM_OPTIONS = ("-Xms32m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dzookeeper.jmx.log4j.disable=true")
SETTINGS = {
    "tickTime": "500", "initLimit": "40", "syncLimit": "20", "minSessionTimeout": "1000", "maxSessionTimeout": "120000",
    "maxClientCnxns": "0", "admin.enableServer": "false", "autopurge.purgeInterval": "24", "autopurge.snapRetainCount": "3",
    "4lw.commands.whitelist": "srvr,mntr,ruok,stat",
}  # fmt: skip


def class_path(environment: Mapping[str, str] = os.environ) -> str:
    """The jars of a ZooKeeper server. Raises: CannotStart."""
    home = environment.get("ZOOKEEPER_HOME")
    if home:
        jars = sorted((Path(home) / "lib").glob("*.jar"))
        if not any(jar.name.startswith("zookeeper") for jar in jars):
            raise CannotStart(f"ZOOKEEPER_HOME is {home}, but there is no lib/zookeeper-*.jar in it")
    else:
        found = find_spec("pyspark")
        places = list(found.submodule_search_locations or ()) if found is not None else []
        jars = sorted(jar for place in places for jar in (Path(place) / "jars").glob("*.jar") if jar.name.startswith(JARS))
        if not any(jar.name.startswith("zookeeper") for jar in jars):
            raise CannotStart("no ZooKeeper on this machine: set ZOOKEEPER_HOME to one, or run: pip install pyspark (it carries one)")
    return os.pathsep.join(map(str, jars))


def mode(address: Address) -> str | None:
    """Mode of the server at this address: ``standalone``, ``leader`` or ``follower``; None while none serves there."""
    try:
        with socket.create_connection(address, timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return None
    return next((line[5:].strip().decode() for line in answer.splitlines() if line.startswith(b"Mode:")), None)


class Server:
    def __init__(self, number: int, directory: Path, address: Address) -> None:
        self.number = number
        self.directory = directory
        self.address = address
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def output(self) -> Path:
        return self.directory / "output.log"

    def mode(self) -> str | None:
        """``standalone``, ``leader`` or ``follower``; None while it does not serve."""
        return mode(self.address)

    def last_error(self) -> str:
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        return next((line for line in reversed(lines) if "Exception" in line or "ERROR" in line), lines[-1] if lines else "nothing written")


class Ensemble:
    """Servers 1 to ``nodes`` in one directory; end it with ``stop``."""

    def __init__(
        self,
        directory: Path,
        java_home: Path,
        *,
        nodes: int = 1,
        listen: Address = ("127.0.0.1", 0),
        members: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        settings_of: Callable[[int], Mapping[str, str]] = lambda number: {},
    ) -> None:
        """The ``listen`` port is the first server's, the others use the ports after it; 0: free ports. ``settings`` are lines of zoo.cfg,
        ``settings_of`` those of one server, by its number.

        ``members``, as ``HOST[:PORT:PORT]``, are all servers of an ensemble on several machines; ``nodes`` is then the number of this one.

        Raises: CannotStart.
        """
        self._java = java_home / "bin" / "java"
        self._class_path = class_path()
        self._settings = {**SETTINGS, **(settings or {})}
        self._settings_of = settings_of
        host, port = listen[0] or "0.0.0.0", listen[1]
        #: Local address of a server that listens on every interface.
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self._host = host
        self._near = near
        #: ``server.N`` lines of zoo.cfg by number; empty for a standalone server.
        self._peers = {number: _peer(text) for number, text in enumerate(members, 1)}
        numbers = [nodes] if members else range(1, nodes + 1)
        self._lock = _locked(directory)
        #: Quorum and election ports of the servers.
        free = _free_ports(near, 3 * len(numbers))
        if len(numbers) > 1:
            self._peers = {number: f"{_bracketed(near)}:{free.pop()}:{free.pop()}" for number in numbers}
        self.servers = [
            Server(number, directory.absolute() / f"node-{number}", (near, port + index if port else free.pop()))
            for index, number in enumerate(numbers)
        ]
        try:
            self._children = ChildWatcher()
        except OSError as error:
            self._lock.release()
            raise CannotStart(f"cannot start a process: {error.strerror}") from None

    @property
    def connect(self) -> str:
        """``HOST:PORT[,HOST:PORT...]``, as in zookeeper.connect."""
        return ",".join(address_text(server.address) for server in self.servers)

    def start(self, *, timeout_s: float | None = READY_S) -> None:
        """Starts all servers, and returns when every one serves; ``timeout_s`` None waits without limit. ``stop`` must follow.

        Raises: CannotStart.
        """
        for server in self.servers:
            self.spawn(server)
        try:
            for server in self.servers:
                self.await_ready(server, timeout_s=timeout_s)
        except CannotStart:
            self.stop()
            raise

    def spawn(self, server: Server) -> None:
        """Starts one server on its existing data. Raises: CannotStart."""
        assert not server.alive, "a server runs once at a time"
        if server.process is not None:
            self._children.remove(server.process.pid)
        _refuse_taken(server.address if self._host == self._near else (self._host, server.address[1]))
        try:
            self._configure(server)
            with open(server.output, "ab") as output:
                server.process = subprocess.Popen(
                    [self._java, *JVM_OPTIONS, "-cp", self._class_path, MAIN, server.directory / "zoo.cfg"],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # Ctrl-C reaches the owner only, which then stops the servers.
                    start_new_session=True,
                    pass_fds=(self._lock.descriptor,),
                )
            self._children.add(server.process.pid)
        except OSError as error:
            raise CannotStart(f"cannot start ZooKeeper in {server.directory}: {error.strerror or error}") from None

    def await_ready(self, server: Server, *, timeout_s: float | None = READY_S) -> None:
        """Returns when the server serves clients. Raises: CannotStart."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while server.mode() is None:
            if not server.alive:
                raise CannotStart(f"ZooKeeper at {address_text(server.address)} ended: {server.last_error()}; see {server.output}")
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise CannotStart(
                    f"ZooKeeper at {address_text(server.address)} does not serve after {timeout_s:.0f} s; see {server.output}"
                )
            time.sleep(0.05)

    def keep_up(self, say: Callable[[str], None]) -> NoReturn:
        """Restarts servers that end, without limit. The pause doubles while a server keeps ending."""
        pauses_s = dict.fromkeys(self.servers, PAUSE_MIN_S)
        begun_s = dict.fromkeys(self.servers, time.monotonic())
        due_s: dict[Server, float] = {}
        while True:
            time.sleep(0.1)
            now_s = time.monotonic()
            for server in (server for server in self.servers if not server.alive):
                if server not in due_s:
                    if now_s - begun_s[server] > PAUSE_MAX_S:
                        pauses_s[server] = PAUSE_MIN_S
                    say(f"server {server.number} ended: {server.last_error()}; see {server.output}. It is started again")
                    due_s[server] = now_s + pauses_s[server]
                    pauses_s[server] = min(2 * pauses_s[server], PAUSE_MAX_S)
                elif now_s >= due_s[server]:
                    del due_s[server]
                    begun_s[server] = now_s
                    try:
                        self.spawn(server)
                    except CannotStart as error:
                        say(str(error))

    def kill(self, server: Server) -> None:
        """Kills a server with SIGKILL."""
        if server.process is not None:
            server.process.kill()
            server.process.wait()
            self._children.remove(server.process.pid)

    def freeze(self, server: Server, *, frozen: bool = True) -> None:
        """Stops a server with SIGSTOP, so its connections stay open and get no answers; ``frozen=False`` continues it."""
        assert server.process is not None, "the server was started"
        server.process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def stop(self) -> None:
        """Ends all servers and unlocks the directory."""
        for server in self.servers:
            if server.alive and server.process is not None:
                server.process.send_signal(signal.SIGCONT)
                server.process.terminate()
        deadline_s = time.monotonic() + STOP_S
        for server in self.servers:
            if server.process is not None:
                try:
                    server.process.wait(max(deadline_s - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    self.kill(server)
                self._children.remove(server.process.pid)
        self._children.close()
        self._lock.release()

    def _configure(self, server: Server) -> None:
        server.directory.mkdir(exist_ok=True)
        (server.directory / "myid").write_text(f"{server.number}\n")
        lines = {
            **self._settings,
            **self._settings_of(server.number),
            "dataDir": str(server.directory),
            "clientPort": str(server.address[1]),
            "clientPortAddress": self._host,
        }
        lines |= {f"server.{number}": peer for number, peer in self._peers.items()}
        (server.directory / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


def _locked(directory: Path) -> LockedDirectory:
    """Locks the directory; waits for servers of a killed owner to end. Raises: CannotStart."""
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return LockedDirectory(directory)
        except CannotStart:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def _peer(text: str) -> str:
    """``HOST[:PORT:PORT]`` in the form of zoo.cfg. Raises: CannotStart."""
    match = re.fullmatch(r"(\[[^]]+\]|[^:\[\]]+)(?::(\d+):(\d+))?", text.strip())
    if match is None:
        raise CannotStart(f"{text!r} is not a member of an ensemble; expected HOST, or HOST:QUORUM-PORT:ELECTION-PORT")
    return f"{match[1]}:{match[2] or QUORUM_PORT}:{match[3] or ELECTION_PORT}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _free_ports(host: str, count: int) -> list[int]:
    """Ports that are free at the moment."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets = [socket.socket(family) for _ in range(count)]
    try:
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]
    except OSError as error:
        raise CannotStart(f"cannot listen on {host}: {error.strerror}; choose another --listen HOST:PORT") from None
    finally:
        for one in sockets:
            one.close()


def _refuse_taken(address: Address) -> None:
    """Raises: CannotStart when another process listens there; ZooKeeper's own error is a long trace."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(address)
        except OSError as error:
            raise CannotStart(f"cannot listen on {address_text(address)}: {error.strerror}; choose another --listen HOST:PORT") from None
