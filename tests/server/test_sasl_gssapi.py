"""GSSAPI with a real key distribution center. Skipped without it or without ottla[gssapi]."""

from typing import Any

import pytest

import ottla
from kerberos import REALM, Kerberos, kerberos
from ottla.testing import broker
from ottla.wire import errors

__all__ = ["kerberos"]
pytestmark = pytest.mark.server


def test_a_client_with_a_ticket_is_authenticated(kerberos: Kerberos) -> None:
    module = 'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab="{}" principal="{}@' + REALM + '";'
    service, alice = kerberos.keytab("kafka/localhost"), kerberos.keytab("alice/workstation")
    settings = {
        "listeners": "SASL_PLAINTEXT://localhost:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": module.format(service, "kafka/localhost"),
        "delegation.token.secret.key": "key",
        "connections.max.reauth.ms": "3600000",
    }
    with broker(settings=settings) as started:
        client: dict[str, Any] = {
            "bootstrap_servers": f"localhost:{started.port}", "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI",
            "sasl_kerberos_service_name": "kafka",
        }  # fmt: skip
        with ottla.Admin(**client, sasl_jaas_config=module.format(alice, "alice/workstation")) as admin:
            assert admin.create_delegation_token().owner == "User:alice"
        assert mapped(kerberos, settings, client, module.format(alice, "alice/workstation")) == "User:WORKSTATION"
        kerberos.keytab("other/localhost")
        wrong: dict[str, Any] = {**client, "sasl_kerberos_service_name": "other"}
        with (
            ottla.Admin(**wrong, sasl_jaas_config=module.format(alice, "alice/workstation")) as admin,
            pytest.raises(errors.SaslAuthenticationFailed, match=r"ticket isn't for us|invalid credentials"),
        ):
            admin.list_topics()
        with (
            ottla.Admin(**client, sasl_jaas_config=module.format(kerberos.directory / "none", "alice/workstation")) as admin,
            pytest.raises(errors.SaslAuthenticationFailed, match="Kerberos: "),
        ):
            admin.list_topics()


def mapped(kerberos: Kerberos, settings: dict[str, str], client: dict[str, Any], login: str) -> str:
    """The principal of alice/workstation on a broker with another rule."""
    rules = "RULE:[2:$2@$0](.*@OTTLA[.]TEST)s/@.*///U"
    with broker(settings={**settings, "sasl.kerberos.principal.to.local.rules": rules}) as other:
        wanted = {**client, "bootstrap_servers": f"localhost:{other.port}"}
        with ottla.Admin(**wanted, sasl_jaas_config=login) as admin:
            return admin.create_delegation_token().owner
