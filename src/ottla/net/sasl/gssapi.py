"""GSSAPI: Kerberos tickets. Needs ``ottla[gssapi]``; the library is imported on use.

::

    client                                    server
    context token          ───────────▶
                           ◀───────────       context token            until the context is established
    empty                  ───────────▶
                           ◀───────────       wrapped: offered layers, largest message
    wrapped: layer 1, authorization id ──▶    done

Only layer 1, no protection, is offered and accepted: TLS protects connections. ``base/kerberos_rules.py`` maps the client's Kerberos
principal to a user; by default it is the first part of a principal of the broker's own realm.

Every step may wait for a file or a key distribution center, so it runs in a thread. Source: RFC 4752; Kafka's SaslServerCallbackHandler,
KerberosShortNamer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.base.jaas import GSSAPI, LoginModule
from ottla.base.kerberos_rules import KerberosRules, NoRule
from ottla.net.sasl.login import FixedLogin, Login
from ottla.net.sasl.mechanism import Challenge, Failure, Outcome, ServerRefused, Success, invalid

#: Security layers: no protection.
NO_LAYER = 1
#: Tokens of one exchange.
TOKENS_MAX = 8


class GssapiMissing(ImportError):
    """The library is not installed."""


def library() -> Any:
    """Raises: GssapiMissing."""
    try:
        import gssapi
    except ImportError:
        raise GssapiMissing("SASL GSSAPI needs a library: install ottla[gssapi]") from None
    return gssapi


def _store(module: LoginModule, usage: str) -> Mapping[str, str] | None:
    """Where the credentials are: the keytab or the ticket cache of the login module; None: the system's."""
    keytab, cache = module.option("keyTab"), module.option("ticketCache")
    if keytab:
        # A client gets its tickets with the keytab, and keeps them in memory.
        return {"keytab": keytab} if usage == "accept" else {"client_keytab": keytab, "ccache": f"MEMORY:{keytab}"}
    return {"ccache": cache} if cache else None


class GssapiServer:
    """An exchange at a server."""

    slow = True

    def __init__(self, module: LoginModule, rules: KerberosRules) -> None:
        """``module``: keytab and principal of the broker. ``rules``: the users of principals."""
        self._module = module
        self._rules = rules
        self._context: Any = None
        self._tokens = 0
        #: Whether the client was told the layers.
        self._offered = False
        self._realm = ""

    def step(self, token: bytes) -> Outcome:
        gssapi = library()
        self._tokens += 1
        if self._tokens > TOKENS_MAX:
            return invalid(GSSAPI, "too many tokens")
        try:
            if self._context is None:
                self._begin(gssapi)
            if not self._context.complete:
                answer = self._context.step(token) or b""
                # The client needs the last token of the context, and answers it with an empty one.
                return Challenge(answer) if answer or not self._context.complete else self._offer()
            return self._chosen(token) if self._offered else self._offer()
        except gssapi.exceptions.GSSError as error:
            return invalid(GSSAPI, f"{type(error).__name__}: {error.gen_message()}")

    def _begin(self, gssapi: Any) -> None:
        principal = self._module.option("principal")
        name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        credentials = gssapi.Credentials(name=name, usage="accept", store=_store(self._module, "accept"))
        self._realm = str(name.canonicalize(gssapi.MechType.kerberos)).rpartition("@")[2]
        self._context = gssapi.SecurityContext(creds=credentials, usage="accept")

    def _offer(self) -> Outcome:
        self._offered = True
        return Challenge(self._context.wrap(bytes([NO_LAYER, 0, 0, 0]), False).message)

    def _chosen(self, token: bytes) -> Outcome:
        message = self._context.unwrap(token).message
        if len(message) < 4 or message[0] != NO_LAYER:
            return invalid(GSSAPI, "the client asks for a layer that was not offered")
        principal = str(self._context.initiator_name)
        try:
            user = self._rules.user(principal, self._realm)
        except NoRule as error:
            return invalid(GSSAPI, f"{error}; the broker is of realm {self._realm}")
        name = principal.rpartition("@")[0]
        wanted = message[4:].decode("utf-8", "replace")
        if wanted and wanted not in (principal, name, user):
            return Failure("Authentication failed: the authorization id is another principal", "authorization id differs from the user")
        return Success(user)


class GssapiClient:
    """An exchange at a client."""

    slow = True

    def __init__(self, module: LoginModule, service: str, host: str) -> None:
        self._module = module
        self._service = service
        self._host = host
        self._context: Any = None
        self._done = False

    def step(self, challenge: bytes) -> bytes | None:
        gssapi = library()
        if self._done:
            return None
        try:
            if self._context is None:
                self._begin(gssapi)
            if not self._context.complete:
                return self._context.step(challenge or None) or b""
            return self._choose(challenge)
        except gssapi.exceptions.GSSError as error:
            raise ServerRefused(f"Kerberos: {error.gen_message()}; is there a ticket, and is the clock right?") from None

    def _begin(self, gssapi: Any) -> None:
        principal = self._module.option("principal")
        own = gssapi.Name(principal, gssapi.NameType.kerberos_principal) if principal else None
        credentials = gssapi.Credentials(name=own, usage="initiate", store=_store(self._module, "initiate"))
        broker = gssapi.Name(f"{self._service}@{self._host}", gssapi.NameType.hostbased_service)
        flags = [gssapi.RequirementFlag.mutual_authentication, gssapi.RequirementFlag.integrity]
        self._context = gssapi.SecurityContext(name=broker, creds=credentials, usage="initiate", mech=gssapi.MechType.kerberos, flags=flags)

    def _choose(self, challenge: bytes) -> bytes:
        offered = self._context.unwrap(challenge).message
        if len(offered) != 4 or not offered[0] & NO_LAYER:
            raise ServerRefused("the server demands a security layer, which Kafka does not have")
        self._done = True
        user = str(self._context.initiator_name)
        wrapped: bytes = self._context.wrap(bytes([NO_LAYER, 0, 0, 0]) + user.encode(), False).message
        return wrapped


def gssapi_login(module: LoginModule, service: str) -> Login:
    """Raises: GssapiMissing."""
    library()
    return FixedLogin(GSSAPI, lambda host: GssapiClient(module, service, host))
