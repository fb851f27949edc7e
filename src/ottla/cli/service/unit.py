"""The systemd unit of a broker. ``deploy/systemd/ottla.service`` is what these defaults give.

The service has a user of its own, writes to its data directory and nothing else, and has no capabilities. It counts as started when clients
can connect, and is restarted when it fails or when its event loop is blocked for ``WatchdogSec``. An invalid setting (exit code 2) is not
retried. A start may recover logs and wait for ZooKeeper for any time; a stop gets five minutes to close all logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ottla.base.options import ConfigError

#: The first line of units that `ottla service uninstall` may remove.
MARK = "# Written by ottla service install; it is written again by the next one. Change it with systemctl edit."
UNITS, SETTINGS = Path("/etc/systemd/system"), "server.properties"
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
#: systemd would split at blanks, and expand percent and dollar signs.
_PATH = re.compile(r"/[\w./@+:-]*")

_UNIT = """\
{mark}
[Unit]
Description=Ottla broker, which speaks the Kafka protocol
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
User={user}
Group={user}
EnvironmentFile=-{environment}
ExecStart={program} serve --data-dir {data_dir} --config {config} --http {http}
Restart=always
RestartSec=2
# 2: a setting is invalid, which a restart does not mend.
RestartPreventExitStatus=2
TimeoutStartSec=infinity
TimeoutStopSec=5min
WatchdogSec=60
KillMode=mixed
LimitNOFILE=1048576
UMask=0077

ReadWritePaths={data_dir}
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""

_PROPERTIES = """\
# Settings of the broker, under Kafka's names. Without a further listener only this machine can connect.
broker.id=1
listeners={listeners}
# To serve other machines: an address that they can reach.
#listeners=PLAINTEXT://0.0.0.0:9092
#advertised.listeners=PLAINTEXT://HOST:9092
# To be one broker of several:
#zookeeper.connect=HOST:2181,HOST:2181,HOST:2181/ottla
#default.replication.factor=3
#min.insync.replicas=2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service as it is to be installed. Paths are absolute."""

    name: str
    user: str
    program: str
    data_dir: PurePosixPath
    config_dir: PurePosixPath
    listen: str
    http: str

    def check(self) -> None:
        """Raises: ConfigError for what cannot be written into a unit."""
        for option, text in (("--name", self.name), ("--user", self.user)):
            if not _NAME.fullmatch(text):
                raise ConfigError(option, f"use lower-case letters, digits, - and _, at most 31, not {text!r}")
        for option, path in (("--data-dir", self.data_dir), ("--config-dir", self.config_dir), ("--program", self.program)):
            if not _PATH.fullmatch(str(path)) or ".." in PurePosixPath(path).parts:
                raise ConfigError(option, f"use an absolute path of letters, digits and . _ - + @ :, not {str(path)!r}")
        if self.user == "root":
            raise ConfigError("--user", "a broker does not run as root; choose another user")
        for path in (self.data_dir, self.config_dir):
            if str(path).startswith(("/home/", "/root", "/run/user/")):
                raise ConfigError("--data-dir", f"the service cannot see home directories; use a path such as /var/lib/{self.name}")

    @property
    def unit(self) -> Path:
        return UNITS / f"{self.name}.service"

    @property
    def config(self) -> PurePosixPath:
        return self.config_dir / SETTINGS

    def unit_text(self) -> str:
        return _UNIT.format(
            mark=MARK, user=self.user, environment=self.config_dir / "environment", program=self.program, data_dir=self.data_dir,
            config=self.config, http=self.http,
        )  # fmt: skip

    def settings_text(self) -> str:
        """The first settings of a new service."""
        return _PROPERTIES.format(listeners=self.listen)
