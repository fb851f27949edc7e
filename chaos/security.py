"""A secured cluster: certificates and settings of its processes, credentials of its clients, and how to change both while it runs.

====================  ==========================================================================================
ZooKeeper             TLS with a certificate, which all brokers share; only they write nodes; TLS between the servers of the ensemble
listener CLIENT       SASL_SSL with SCRAM-SHA-512
listener BROKER       SASL_SSL with PLAIN
access rules          on; ``client`` may use all topics and groups, ``admin`` and the brokers are super users
====================  ==========================================================================================

The run itself reads the state of the cluster through the plaintext port of ZooKeeper, which listens on the loopback only.
"""

from __future__ import annotations

import datetime
import secrets
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509

from ottla import Admin
from ottla.net.tls.authority import Authority
from ottla.results import Acl, AclOperation, AclResourceType

ADMIN, CLIENT = "admin", "client"
#: Users of the brokers. One is in use; the other is the next one.
BROKER_USERS = ("broker-a", "broker-b")
#: Brokers renew their sessions often, so that a password which is no longer valid shows. Clients do it less often: when a connection ends
#: while librdkafka authenticates again, it gives up the records in flight.
BROKER_SESSION_MS, CLIENT_SESSION_MS = 10_000, 60_000
CLIENT_MECHANISM = "SCRAM-SHA-512"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@dataclass(frozen=True, slots=True)
class Connection:
    """How clients reach the cluster."""

    bootstrap: str
    #: Security settings of Ottla's clients, and of librdkafka.
    of_ottla: dict[str, Any] = field(default_factory=dict, repr=False)
    of_librdkafka: dict[str, Any] = field(default_factory=dict, repr=False)

    def ottla(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.bootstrap, **self.of_ottla}

    def librdkafka(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, **self.of_librdkafka}


class BrokerSecurity:
    """The security settings of one broker; a start of the broker writes them to its file of settings."""

    def __init__(self, cluster: ClusterSecurity, number: int, clients: str, brokers: str) -> None:
        self.number = number
        #: Addresses of the listeners.
        self.clients, self.brokers = clients, brokers
        self.path = cluster.directory / f"broker-{number}.properties"
        self._cluster = cluster
        self._name = f"broker-{number}"
        self._host = clients.rpartition(":")[0]
        #: The certificate in use, in a file of its own.
        self.certificate = cluster.issue(self._name, self._host)
        #: Users that other brokers may log in as, with their passwords, and the one that this broker logs in as.
        self.accepted = {BROKER_USERS[0]: cluster.first_password}
        self.user = BROKER_USERS[0]

    @property
    def password(self) -> str:
        return self.accepted[self.user]

    def write(self) -> None:
        """Write the file of settings."""
        ca, own = self._cluster.ca, self.certificate
        users = " ".join(f'user_{name}="{password}"' for name, password in self.accepted.items())
        lines = {
            "listeners": f"CLIENT://{self.clients},BROKER://{self.brokers}",
            "listener.security.protocol.map": "CLIENT:SASL_SSL,BROKER:SASL_SSL",
            "inter.broker.listener.name": "BROKER",
            "listener.name.client.sasl.enabled.mechanisms": CLIENT_MECHANISM,
            "listener.name.broker.sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.broker.plain.sasl.jaas.config": (
                f'{PLAIN_MODULE} required username="{self.user}" password="{self.password}" {users};'
            ),
            "listener.name.broker.plain.connections.max.reauth.ms": str(BROKER_SESSION_MS),
            "listener.name.client.scram-sha-512.connections.max.reauth.ms": str(CLIENT_SESSION_MS),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(own),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(ca),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{name}" for name in (ADMIN, *BROKER_USERS)),
            "zookeeper.set.acl": "true",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.location": str(self._cluster.zookeeper_client),
            "zookeeper.ssl.truststore.location": str(ca),
        }
        self.path.touch(mode=0o600)
        self.path.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))

    def arguments(self) -> list[str]:
        """Arguments of `ottla serve`."""
        found = ["--config", str(self.path)]
        for name, path in self._cluster.password_files.items():
            found += ["--init-scram", f"{CLIENT_MECHANISM}=[name={name},password-file={path}]"]
        return found

    def replace_file(self) -> None:
        """Put a new certificate into the file that is in use."""
        self._cluster.issue(self._name, self._host).replace(self.certificate)

    def new_file(self) -> Path:
        """A new certificate in a file that is not in use."""
        return self._cluster.issue(self._name, self._host)

    def uses(self, path: Path) -> bool:
        """Whether both listeners use the certificate in a file for new connections."""
        wanted = x509.load_pem_x509_certificates(path.read_bytes())[0]
        return all(_shown(address) == wanted for address in (self.clients, self.brokers))


def _shown(address: str) -> x509.Certificate | None:
    """The certificate that a listener shows; None if it does not answer."""
    host, _, port = address.rpartition(":")
    try:
        return x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port)), timeout=2.0).encode())
    except OSError:
        return None


class ClusterSecurity:
    """Certificates, users and passwords of a cluster, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._authority = Authority.create(directory, "chaos", now=_now())
        self._issued = 0
        self.ca = directory / "ca.pem"
        self.zookeeper_client = self.issue("zookeeper-client")
        self._zookeeper = self.issue("zookeeper", "127.0.0.1", "localhost", "10.77.9.2")
        self._passwords = {name: new_password() for name in (ADMIN, CLIENT)}
        #: The password that all brokers have at first.
        self.first_password = new_password()
        self.password_files = {name: directory / f"{name}.password" for name in self._passwords}
        for name, path in self.password_files.items():
            path.write_text(self._passwords[name])

    def issue(self, name: str, *hosts: str) -> Path:
        """A new certificate with its key, in a file of its own."""
        self._issued += 1
        path = self._authority.issue(name, hosts, now=_now())
        return path.rename(path.with_name(f"{name}-{self._issued}.pem"))

    def zookeeper_settings(self, secure_port: int, *, ensemble: bool) -> dict[str, str]:
        """Lines of zoo.cfg of one server."""
        stores = {"keyStore": self._zookeeper, "trustStore": self.ca}
        kinds = ("ssl", "ssl.quorum") if ensemble else ("ssl",)
        found = {f"{kind}.{store}.location": str(path) for kind in kinds for store, path in stores.items()}
        found |= {f"{kind}.{store}.type": "PEM" for kind in kinds for store in stores}
        found |= {"secureClientPort": str(secure_port), "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory"}
        return {**found, "ssl.clientAuth": "need", **({"sslQuorum": "true"} if ensemble else {})}

    def connection(self, bootstrap: str, user: str = CLIENT) -> Connection:
        password = self._passwords[user]
        of_ottla = {
            "security_protocol": "SASL_SSL", "sasl_mechanism": CLIENT_MECHANISM, "sasl_username": user, "sasl_password": password,
            "ssl_truststore_type": "PEM", "ssl_truststore_location": str(self.ca),
        }  # fmt: skip
        of_librdkafka = {
            "security.protocol": "SASL_SSL", "sasl.mechanism": CLIENT_MECHANISM, "sasl.username": user, "sasl.password": password,
            "ssl.ca.location": str(self.ca),
        }  # fmt: skip
        return Connection(bootstrap, of_ottla, of_librdkafka)

    def as_broker(self, address: str, user: str, password: str) -> dict[str, Any]:
        """Settings of a client that logs in as a broker does."""
        return {
            "bootstrap_servers": address, "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": user,
            "sasl_password": password, "ssl_truststore_type": "PEM", "ssl_truststore_location": str(self.ca),
        }  # fmt: skip

    def add_rules(self, admin: Admin) -> None:
        """Give `client` its rights."""
        needed = [(AclResourceType.TOPIC, one) for one in (AclOperation.READ, AclOperation.WRITE)]
        needed.append((AclResourceType.GROUP, AclOperation.READ))
        rules = [Acl(principal=f"User:{CLIENT}", operation=what, resource_type=kind, name="*") for kind, what in needed]
        for error in admin.create_acls(rules).values():
            if error is not None:
                raise error


def new_password() -> str:
    return secrets.token_hex(8)


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time.time(), datetime.UTC)
