"""The SASL mechanisms of a listener, from the settings in effect and the credentials in the store.

==============  =========================================================================================
PLAIN           users in the login module: ``user_NAME="PASSWORD"``
SCRAM           credentials in ``/config/users/NAME``; delegation tokens in ``/delegation_token/tokens/ID``
OAUTHBEARER     tokens signed with a key of ``sasl.oauthbearer.jwks.endpoint.url``
GSSAPI          the keytab and the principal of the login module; needs ``ottla[gssapi]``
==============  =========================================================================================

Settings and credentials are looked up for each exchange, so a change applies to the next one. What a mechanism lacks refuses the start;
what is removed later fails the exchanges. Source: Kafka's JaasContext and SaslChannelBuilder.
"""

import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache

from ottla.base import jaas
from ottla.base.delegation_tokens import token_password
from ottla.base.jaas import JaasError, LoginModule, login_module
from ottla.base.kerberos_rules import check_rules
from ottla.base.options import ConfigError
from ottla.base.scram import BY_NAME, ITERATIONS_MIN, MalformedCredential, ScramCredential, ScramMechanism
from ottla.broker.metadata.configs import LISTENER_PREFIX, BrokerOptions
from ottla.broker.metadata.image import Image
from ottla.net.sasl.gssapi import GssapiMissing, GssapiServer, library
from ottla.net.sasl.jwt_validation import READ_TIMEOUT_MS, JwtRules, JwtValidator
from ottla.net.sasl.login import Login
from ottla.net.sasl.logins import LoginRefused, OAuthSource, login_of
from ottla.net.sasl.mechanism import Failure, Outcome, ServerMechanism, TokenCredential
from ottla.net.sasl.oauthbearer import OAuthBearerServer
from ottla.net.sasl.plain import PlainServer
from ottla.net.sasl.scram import ScramServer

SALT_BYTES = 24

#: Settings in effect for a mechanism of the listener; "": of the listener itself.
OptionsOf = Callable[[str], BrokerOptions]


class StoredCredentials:
    """The port ``Credentials`` of one exchange."""

    def __init__(self, module: LoginModule, image: Image, wall_ms: Callable[[], int], token_key: str) -> None:
        self._module = module
        self._image = image
        self._wall_ms = wall_ms
        self._token_key = token_key

    def password(self, user: str) -> str | None:
        return self._module.users.get(user)

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        text = self._image.overrides("users", user).get(mechanism.mechanism)
        try:
            return None if text is None else ScramCredential.parse(text)
        except MalformedCredential:
            return None

    def token(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None:
        token = self._image.tokens.get(token_id)
        if token is None or not self._token_key or min(token.expires_ms, token.max_ms) <= self._wall_ms():
            return None
        kind, _, owner = token.owner.partition(":")
        return TokenCredential(kind, owner, token.expires_ms, token_credential(mechanism, token_password(token_id, self._token_key)))


@lru_cache(1_000)
def token_credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    """The credential of a delegation token; takes milliseconds."""
    return ScramCredential.of_password(mechanism, password, secrets.token_bytes(SALT_BYTES), ITERATIONS_MIN)


class Unavailable:
    """An exchange of a mechanism whose settings were removed."""

    slow = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def step(self, token: bytes) -> Outcome:
        return Failure("Authentication failed: the broker cannot verify credentials of this mechanism", self._reason)


class ListenerMechanisms:
    """The port ``Mechanisms`` of a listener."""

    def __init__(self, listener: str, options_of: OptionsOf, image: Image, wall_ms: Callable[[], int]) -> None:
        self._listener = listener
        self._options_of = options_of
        self._image = image
        self._wall_ms = wall_ms
        #: Validators of tokens keep the identity provider's keys.
        self._validators: dict[JwtRules, JwtValidator] = {}

    @property
    def enabled(self) -> Sequence[str]:
        return self._options_of("").sasl_enabled_mechanisms

    def max_reauth_ms(self, mechanism: str) -> int:
        return self._options_of(mechanism).connections_max_reauth_ms

    def open(self, mechanism: str) -> ServerMechanism:
        options = self._options_of(mechanism)
        try:
            check_mechanism(self._listener, mechanism, options)
        except ConfigError as error:
            return Unavailable(str(error))
        module = module_of(options, mechanism)
        credentials = StoredCredentials(module, self._image, self._wall_ms, options.token_key)
        if mechanism == jaas.PLAIN:
            return PlainServer(credentials)
        if mechanism in BY_NAME:
            # The credential of a delegation token is derived from its HMAC, which takes time.
            return ScramServer(BY_NAME[mechanism], credentials, secrets.token_bytes, slow=bool(options.token_key))
        if mechanism == jaas.OAUTHBEARER:
            return OAuthBearerServer(self._validator(jwt_rules(options)))
        return GssapiServer(module, check_rules(options.kerberos_principal_rules))

    def _validator(self, rules: JwtRules) -> JwtValidator:
        if rules not in self._validators:
            self._validators = {rules: JwtValidator(rules, now_ms=self._wall_ms)}
        return self._validators[rules]


def peer_login(listener: str, options_of: OptionsOf) -> Login:
    """The credentials of this broker for others, on the listener between brokers. Raises: ConfigError."""
    mechanism = options_of("").sasl_inter_broker_mechanism
    if mechanism not in options_of("").sasl_enabled_mechanisms:
        problem = f"listener {listener}, which brokers use among themselves, does not enable {mechanism}"
        raise ConfigError("sasl.mechanism.inter.broker.protocol", problem)
    options = options_of(mechanism)
    source = OAuthSource(url=options.oauth_token_url, read_timeout_ms=options.sasl_login_read_timeout_ms or READ_TIMEOUT_MS)
    setting = f"{LISTENER_PREFIX}{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    try:
        return login_of(mechanism, module_of(options, mechanism), source, service=options.kerberos_service_name)
    except LoginRefused as error:
        raise ConfigError(setting, f"brokers authenticate to each other with it: {error}") from None


def module_of(options: BrokerOptions, mechanism: str) -> LoginModule:
    """The login module of a mechanism; without options if there is none, or one of another mechanism for all of them."""
    try:
        return login_module(options.sasl_jaas_config, mechanism)
    except JaasError:
        return LoginModule(jaas.MODULES[mechanism])


def jwt_rules(options: BrokerOptions) -> JwtRules:
    return JwtRules(
        jwks_url=options.jwks_url,
        issuer=options.oauth_expected_issuer,
        audience=options.oauth_expected_audience,
        clock_skew_s=options.oauth_clock_skew_seconds,
        scope_claim=options.oauth_scope_claim,
        sub_claim=options.oauth_sub_claim,
        refresh_ms=options.jwks_refresh_ms,
        retry_ms=options.jwks_retry_backoff_ms,
        retry_max_ms=options.jwks_retry_backoff_max_ms,
        read_timeout_ms=options.sasl_login_read_timeout_ms or READ_TIMEOUT_MS,
    )


def check_listener(listener: str, options_of: OptionsOf) -> None:
    """Refuses a listener whose mechanisms lack what they need. Raises: ConfigError."""
    enabled = options_of("").sasl_enabled_mechanisms
    if not enabled:
        raise ConfigError(
            "sasl.enabled.mechanisms", f"listener {listener} has SASL and no mechanism; name one of {', '.join(jaas.MECHANISMS)}"
        )
    for mechanism in enabled:
        check_mechanism(listener, mechanism, options_of(mechanism))


def check_mechanism(listener: str, mechanism: str, options: BrokerOptions) -> None:
    """Refuses a mechanism that lacks what it needs. Raises: ConfigError."""
    prefix = f"{LISTENER_PREFIX}{listener.lower()}.{mechanism.lower()}."
    setting = f"{prefix}sasl.jaas.config"
    module = module_of(options, mechanism)
    if mechanism == jaas.PLAIN and not module.users:
        example = f'{jaas.PLAIN_MODULE} required user_NAME="PASSWORD";'
        raise ConfigError(setting, f"PLAIN is enabled and has no users; write them as {example} or set sasl.enabled.mechanisms")
    if mechanism == jaas.OAUTHBEARER:
        _check_oauthbearer(prefix, options)
    elif options.sasl_validator_class or options.sasl_login_class:
        name = f"{prefix}sasl.{'server' if options.sasl_validator_class else 'login'}.callback.handler.class"
        raise ConfigError(name, "this class is of OAUTHBEARER; set it for that mechanism only")
    if mechanism == jaas.GSSAPI:
        _check_gssapi(setting, module)


def _check_oauthbearer(prefix: str, options: BrokerOptions) -> None:
    if not options.jwks_url:
        name = f"{prefix}sasl.oauthbearer.jwks.endpoint.url"
        raise ConfigError(name, "OAUTHBEARER is enabled and has no keys to validate tokens; unsigned tokens are refused")
    if not options.oauth_expected_issuer and not options.oauth_unverified_issuer:
        name = f"{prefix}sasl.oauthbearer.expected.issuer"
        raise ConfigError(name, "it is not set; set it, or sasl.oauthbearer.allow.unverified.issuer=true")
    if not options.oauth_expected_audience and not options.oauth_unverified_audience:
        name = f"{prefix}sasl.oauthbearer.expected.audience"
        raise ConfigError(name, "it is not set; set it, or sasl.oauthbearer.allow.unverified.audience=true")


def _check_gssapi(setting: str, module: LoginModule) -> None:
    try:
        library()
    except GssapiMissing as error:
        raise ConfigError("sasl.enabled.mechanisms", f"GSSAPI is enabled, as by default: {error}, or name other mechanisms") from None
    for option in ("keyTab", "principal"):
        if not module.option(option):
            problem = (
                f'GSSAPI is enabled and has no {option}; set {jaas.KERBEROS_MODULE} required keyTab="FILE" principal="kafka/HOST@REALM";'
            )
            raise ConfigError(setting, f"{problem} or set sasl.enabled.mechanisms")
