"""Users of a broker in a test: a listener with SASL, on which each user authenticates with PLAIN or SCRAM.

The test helpers have a user of their own, with a random password. Source of the names: KIP-43, KIP-84.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping
from typing import Any

from ottla.base import jaas
from ottla.base.ports import Op, StoreRequests, StoreResult
from ottla.base.scram import ITERATIONS_MIN, ScramCredential, ScramMechanism
from ottla.store import layout

LISTENER = "SASL_PLAINTEXT"
MECHANISMS = (jaas.PLAIN, jaas.SCRAM_256, jaas.SCRAM_512)
#: User of the test helpers.
HELPER = "ottla-testing"


class Users:
    """Passwords by user."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        """Raises: ValueError for a name that PLAIN's login module cannot have."""
        for name in passwords:
            if not re.fullmatch(r"[\w.$-]+", name):
                raise ValueError(f"user {name!r}: use letters, digits, '.', '_', '$' and '-'")
        self.passwords = {**passwords, HELPER: secrets.token_hex(16)}

    def settings(self, host: str, port: int) -> dict[str, str]:
        """Settings of the broker."""
        options = {f"user_{name}": password for name, password in self.passwords.items()}
        return {
            "listeners": f"{LISTENER}://{host}:{port}",
            "security.inter.broker.protocol": LISTENER,
            "sasl.mechanism.inter.broker.protocol": jaas.PLAIN,
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": jaas.login_module_text(
                jaas.PLAIN, {"username": HELPER, "password": self.passwords[HELPER], **options}
            ),
        }

    def client_settings(self, user: str = HELPER, mechanism: str = jaas.PLAIN) -> dict[str, Any]:
        """Settings of a client of Ottla that is this user. Raises: KeyError."""
        return {
            "security_protocol": LISTENER,
            "sasl_mechanism": mechanism,
            "sasl_username": user,
            "sasl_password": self.passwords[user],
        }

    async def store_credentials(self, session: StoreRequests) -> None:
        """Writes the SCRAM credentials; those that exist stay."""
        loop = asyncio.get_running_loop()
        for name, password in self.passwords.items():
            texts = {
                mechanism.mechanism: ScramCredential.of_password(mechanism, password, secrets.token_bytes(16), ITERATIONS_MIN).text
                for mechanism in ScramMechanism
            }
            done: asyncio.Future[StoreResult] = loop.create_future()
            session.submit((Op("create", layout.config("users", name), layout.encode_config(texts)),), done.set_result)
            await done
