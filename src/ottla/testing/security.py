"""TLS, users and access rules of a broker in a test, and the settings of clients that it lets in.

::

    tls    users   listener        a client is
    no     no      PLAINTEXT       anonymous
    no     yes     SASL_PLAINTEXT  a user, by PLAIN or SCRAM
    yes    no      SSL             the name in its certificate: User:CN=alice
    yes    yes     SASL_SSL        a user, by PLAIN or SCRAM

The authority of the certificates, and they themselves, are made for the test. The test helpers are a super user with a random password, or
with a certificate. Source of the names: KIP-43, KIP-84.
"""

import asyncio
import datetime
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.base import jaas
from ottla.base.ports import Op, StoreRequests, StoreResult
from ottla.base.scram import ITERATIONS_MIN, ScramCredential, ScramMechanism
from ottla.store import layout

if TYPE_CHECKING:
    # Imported on use: brokers without TLS do not need the library for certificates.
    from ottla.net.tls.authority import Authority

MECHANISMS = (jaas.PLAIN, jaas.SCRAM_256, jaas.SCRAM_512)
#: User of the test helpers.
HELPER = "ottla-testing"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SUPER_USERS = "super.users"


class Certificates:
    """A private authority and the certificates that it issued, in files that are removed with this object."""

    def __init__(self, host: str) -> None:
        directory = tempfile.mkdtemp(prefix="ottla-testing-")
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self._authority = self._made(Path(directory), host)
        #: Of the broker, with its key.
        self.broker = Path(directory) / f"{host}.pem"
        #: Of the authority, as PEM.
        self.authority = Path(directory) / "ca.pem"

    @staticmethod
    def _made(directory: Path, host: str) -> "Authority":
        from ottla.net.tls.authority import Authority

        now = datetime.datetime.now(datetime.UTC)
        made = Authority.create(directory, "Authority of a test", now=now)
        made.issue(host, [host, "localhost"], now=now)
        return made

    def of_client(self, name: str) -> Path:
        """A client's certificate ``CN=name`` with its key, as PEM; issued at the first call."""
        path = self.authority.parent / f"{name}.pem"
        return path if path.exists() else self._authority.issue(name, [], now=datetime.datetime.now(datetime.UTC))


class Security:
    """Who may connect to a broker, and how."""

    def __init__(self, *, host: str, users: Mapping[str, str] | None, tls: bool, rules: bool) -> None:
        """``users``: passwords by name. ``rules``: whether there are access rules.

        Raises: ValueError for a name that PLAIN's login module cannot have, and for rules without a way to know clients.
        """
        for name in users or ():
            if not re.fullmatch(r"[\w.$-]+", name):
                raise ValueError(f"user {name!r}: use letters, digits, '.', '_', '$' and '-'")
        if rules and users is None and not tls:
            raise ValueError("access rules need clients with names: add users={...}, or tls=True for names in certificates")
        self._host = host
        self._rules = rules
        #: None: clients need no password.
        self.passwords = None if users is None else {**users, HELPER: secrets.token_hex(16)}
        self.certificates = Certificates(host) if tls else None

    @property
    def protocol(self) -> str:
        """Of the listener, whose name it is."""
        encrypted = self.certificates is not None
        return (
            "SSL" if encrypted and self.passwords is None else "SASL_SSL" if encrypted else "SASL_PLAINTEXT" if self._sasl else "PLAINTEXT"
        )

    @property
    def _sasl(self) -> bool:
        return self.passwords is not None

    def settings(self, port: int, own: Mapping[str, str]) -> dict[str, str]:
        """Settings of the broker; ``own``: those of the test."""
        protocol = self.protocol
        if protocol == "PLAINTEXT":
            return {}
        found = {"listeners": f"{protocol}://{self._host}:{port}", "security.inter.broker.protocol": protocol}
        if self.passwords is not None:
            users = {f"user_{name}": password for name, password in self.passwords.items()}
            module = jaas.login_module_text(jaas.PLAIN, {"username": HELPER, "password": self.passwords[HELPER], **users})
            found |= {
                "sasl.mechanism.inter.broker.protocol": jaas.PLAIN,
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": module,
            }
        if self.certificates is not None:
            found |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.certificates.broker),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.certificates.authority),
            }
            if self.passwords is None:
                found["ssl.client.auth"] = "requested"
        found |= own
        if self._rules:
            helper = HELPER if self._sasl else f"CN={HELPER}"
            # A broker is a client of itself: with the certificate that it shows.
            supers = [own.get(SUPER_USERS, ""), f"User:{helper}", *([] if self._sasl else [f"User:CN={self._host}"])]
            found |= {"authorizer.class.name": own.get("authorizer.class.name", AUTHORIZER), SUPER_USERS: ";".join(filter(None, supers))}
        return found

    # Clients.

    def client_settings(self, user: str | None, mechanism: str) -> dict[str, Any]:
        """Settings of a client of Ottla. ``user`` None: the test helpers. Raises: KeyError for a user without a password."""
        return {name.replace(".", "_"): value for name, value in self._settings(user, mechanism).items()}

    def java_settings(self, user: str | None, mechanism: str) -> dict[str, str]:
        """The same for clients in Java. Raises: KeyError."""
        found = self._settings(user, mechanism)
        if "sasl.username" in found:
            login = {"username": found.pop("sasl.username"), "password": found.pop("sasl.password")}
            found["sasl.jaas.config"] = jaas.login_module_text(mechanism, login)
        return found

    def librdkafka_settings(self, user: str | None, mechanism: str) -> dict[str, str]:
        """The same for clients of librdkafka. Raises: KeyError."""
        found = self._settings(user, mechanism)
        own, trusted = found.pop("ssl.keystore.location", ""), found.pop("ssl.truststore.location", "")
        found = {name: value for name, value in found.items() if not name.endswith(".type")}
        if trusted:
            found["ssl.ca.location"] = trusted
        if own:
            found |= {"ssl.certificate.location": own, "ssl.key.location": own}
        return found

    def _settings(self, user: str | None, mechanism: str) -> dict[str, str]:
        name = user or HELPER
        found = {} if self.protocol == "PLAINTEXT" else {"security.protocol": self.protocol}
        if self.certificates is not None:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.certificates.authority)}
        if self.passwords is not None:
            if name not in self.passwords:
                raise KeyError(f"the broker has no user {name!r}: name it in users=")
            found |= {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": self.passwords[name]}
        elif self.certificates is not None:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.certificates.of_client(name))}
        elif user is not None:
            raise KeyError(f"the broker has no users: name {user!r} in users=, or use tls=True for names in certificates")
        return found

    async def store_credentials(self, session: StoreRequests) -> None:
        """Writes the SCRAM credentials; those that exist stay."""
        loop = asyncio.get_running_loop()
        for name, password in (self.passwords or {}).items():
            texts = {
                mechanism.mechanism: ScramCredential.of_password(mechanism, password, secrets.token_bytes(16), ITERATIONS_MIN).text
                for mechanism in ScramMechanism
            }
            done: asyncio.Future[StoreResult] = loop.create_future()
            session.submit((Op("create", layout.config("users", name), layout.encode_config(texts)),), done.set_result)
            await done
