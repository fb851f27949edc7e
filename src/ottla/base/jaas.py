"""Login modules in the form of Java's JAAS, which Kafka's settings ``sasl.jaas.config`` have.

::

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="broker" password="..." user_alice="...";

One setting has one module. The class stands for a mechanism, and the options are its credentials. A class, an option or a flag that has no
meaning here is refused, so that a misspelt one cannot weaken a broker. Messages name options and never contain a value: most are secrets.

Source: KIP-85; Kafka's JaasConfig.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

PLAIN, OAUTHBEARER, GSSAPI = "PLAIN", "OAUTHBEARER", "GSSAPI"
SCRAM_256, SCRAM_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
#: All mechanisms.
MECHANISMS = (PLAIN, SCRAM_256, SCRAM_512, OAUTHBEARER, GSSAPI)

_KAFKA = "org.apache.kafka.common.security"
PLAIN_MODULE = f"{_KAFKA}.plain.PlainLoginModule"
SCRAM_MODULE = f"{_KAFKA}.scram.ScramLoginModule"
OAUTHBEARER_MODULE = f"{_KAFKA}.oauthbearer.OAuthBearerLoginModule"
KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
#: Classes by mechanism.
MODULES = {
    PLAIN: PLAIN_MODULE,
    SCRAM_256: SCRAM_MODULE,
    SCRAM_512: SCRAM_MODULE,
    OAUTHBEARER: OAUTHBEARER_MODULE,
    GSSAPI: KERBEROS_MODULE,
}
#: Options by class. Those that end with ``_`` are prefixes.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    PLAIN_MODULE: ("username", "password", "user_", "serviceName"),
    SCRAM_MODULE: ("username", "password", "tokenauth", "serviceName"),
    OAUTHBEARER_MODULE: (
        "clientId", "clientSecret", "scope", "extension_", "serviceName",
        "unsecuredLoginStringClaim_", "unsecuredLoginNumberClaim_", "unsecuredLoginListClaim_", "unsecuredLoginExtension_",
        "unsecuredLoginPrincipalClaimName", "unsecuredLoginLifetimeSeconds", "unsecuredLoginScopeClaimName",
        "unsecuredValidatorPrincipalClaimName", "unsecuredValidatorScopeClaimName", "unsecuredValidatorRequiredScope",
        "unsecuredValidatorAllowableClockSkewMs",
    ),
    KERBEROS_MODULE: (
        "useKeyTab", "keyTab", "storeKey", "principal", "serviceName", "useTicketCache", "ticketCache", "renewTGT", "doNotPrompt",
        "isInitiator", "refreshKrb5Config", "debug",
    ),
}  # fmt: skip
FLAGS = ("required", "requisite", "sufficient", "optional")

_TOKEN = re.compile(r"""\s+|//[^\n]*|/\*.*?\*/|(?P<quoted>"(?:[^"\\\n]|\\.)*")|(?P<word>[\w.$\-]+)|(?P<sign>[=;])""", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b"}


class JaasError(ValueError):
    """The text is no login module that can be honoured; the message has no values."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A class and its options."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def option(self, name: str) -> str:
        """The value of an option; empty without one."""
        return self.options.get(name, "")

    @property
    def users(self) -> dict[str, str]:
        """Passwords by user: the options ``user_NAME`` of PLAIN."""
        return {name.removeprefix("user_"): value for name, value in self.options.items() if name.startswith("user_")}


def login_module(text: str, mechanism: str = "") -> LoginModule:
    """The only login module of the text, which must be of the mechanism, if one is named. Raises: JaasError."""
    tokens = _tokens(text)
    if not tokens:
        raise JaasError("expected a login module, such as " + MODULES.get(mechanism, SCRAM_MODULE) + ' required option="value";')
    name = _word(tokens, "the class of a login module")
    if name not in OPTIONS:
        raise JaasError(f"login module {name} is not one of {', '.join(OPTIONS)}")
    if mechanism and MODULES[mechanism] != name:
        raise JaasError(f"the login module of {mechanism} is {MODULES[mechanism]}, not {name}")
    flag = _word(tokens, f"a flag after {name}")
    if flag.lower() not in FLAGS:
        raise JaasError(f"expected {', '.join(FLAGS)} after {name}")
    options: dict[str, str] = {}
    while tokens and tokens[0] != ("sign", ";"):
        key = _word(tokens, "the name of an option, or ;")
        if not any(key.startswith(known) if known.endswith("_") else key == known for known in OPTIONS[name]):
            raise JaasError(f"option {key} of {name} has no meaning here")
        if key in options:
            raise JaasError(f"option {key} is set twice")
        if not tokens or tokens.pop(0) != ("sign", "="):
            raise JaasError(f"expected = after option {key}")
        if not tokens or tokens[0][0] == "sign":
            raise JaasError(f"option {key} has no value")
        options[key] = tokens.pop(0)[1]
    if not tokens:
        raise JaasError("expected ; at the end of the login module")
    tokens.pop(0)
    if tokens:
        raise JaasError("expected one login module; text follows its ;")
    return LoginModule(name, options)


def login_module_text(mechanism: str, options: Mapping[str, str]) -> str:
    """The text of a login module."""
    parts = [f'{name}="{_escaped(value)}"' for name, value in options.items()]
    return " ".join([MODULES[mechanism], "required", *parts]) + ";"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise JaasError(f"character {position + 1} is not part of a login module; put values in double quotes")
        position = match.end()
        if quoted := match["quoted"]:
            found.append(("quoted", re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted[1:-1], flags=re.DOTALL)))
        elif word := match["word"]:
            found.append(("word", word))
        elif sign := match["sign"]:
            found.append(("sign", sign))
    return found


def _word(tokens: list[tuple[str, str]], what: str) -> str:
    if not tokens or tokens[0][0] != "word":
        raise JaasError(f"expected {what}")
    return tokens.pop(0)[1]
