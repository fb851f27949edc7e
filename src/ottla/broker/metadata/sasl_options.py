"""Settings of authentication, with Kafka's names.

``listener.name.LISTENER.`` before a name sets it for one listener, ``listener.name.LISTENER.MECHANISM.`` for one mechanism of a listener,
both in lower case. Source: KIP-43, KIP-48, KIP-85, KIP-226, KIP-368, KIP-768.
"""

from functools import partial

from ottla.base.jaas import MECHANISMS, login_module
from ottla.base.kerberos_rules import DEFAULT, check_rules
from ottla.base.options import Long, Options, Secret, option
from ottla.base.units import DAY_MS, HOUR_MS, SECOND_MS, KiB

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
#: Classes of Kafka whose function is built in here.
VALIDATORS = ("", f"{_OAUTH}.OAuthBearerValidatorCallbackHandler", f"{_OAUTH}.secured.OAuthBearerValidatorCallbackHandler")
LOGINS = ("", f"{_OAUTH}.OAuthBearerLoginCallbackHandler", f"{_OAUTH}.secured.OAuthBearerLoginCallbackHandler")
_URL = (r"|(file|https?)://\S+", "a URL that begins with file://, https:// or http://")
#: Each mechanism of a listener can have its own value.
_per_mechanism = partial(option, per_listener=True, per_mechanism=True)


class SaslOptions(Options):
    """Settings of SASL and of delegation tokens."""

    sasl_enabled_mechanisms: tuple[str, ...] = option(
        ("GSSAPI",), choices=MECHANISMS, scope="per-broker", per_listener=True, doc="Mechanisms that clients of SASL listeners may use."
    )
    sasl_inter_broker_mechanism: str = option(
        "GSSAPI",
        name="sasl.mechanism.inter.broker.protocol",
        choices=MECHANISMS,
        scope="per-broker",
        doc="Mechanism with which brokers authenticate to each other, if the listener between brokers is one with SASL.",
    )
    sasl_jaas_config: Secret = _per_mechanism(
        "",
        scope="per-broker",
        check=login_module,
        doc=(
            "Credentials of one mechanism, as a login module of JAAS: the users of PLAIN, the broker's own name and password for other "
            "brokers. Set it for a mechanism of a listener, as listener.name.LISTENER.MECHANISM.sasl.jaas.config."
        ),
    )
    connections_max_reauth_ms: Long = _per_mechanism(
        0, doc="A client of SASL must authenticate again within this time, or its connection is closed; 0: no such limit."
    )
    failed_authentication_delay_ms: int = option(
        100,
        name="connection.failed.authentication.delay.ms",
        at_least=0,
        doc="Wait before a failed authentication is answered and its connection closed.",
    )
    sasl_server_max_receive_size: int = option(
        512 * KiB, at_least=64, doc="Largest request of a client before it is authenticated, on listeners with SASL."
    )
    authentication_timeout_ms: int = option(
        30 * SECOND_MS,
        name="ottla.authentication.timeout.ms",
        at_least=1,
        doc="A connection to a listener with SASL that is not authenticated after this time is closed.",
    )
    sasl_validator_class: str = _per_mechanism(
        "",
        name="sasl.server.callback.handler.class",
        choices=VALIDATORS,
        doc="Kafka's class that validates the tokens of OAUTHBEARER. It is built in; other classes cannot be loaded.",
    )
    sasl_login_class: str = _per_mechanism(
        "",
        name="sasl.login.callback.handler.class",
        choices=LOGINS,
        doc="Kafka's class that gets tokens for OAUTHBEARER. It is built in; other classes cannot be loaded.",
    )
    jwks_url: str = _per_mechanism(
        "",
        name="sasl.oauthbearer.jwks.endpoint.url",
        form=_URL,
        doc="Keys of the identity provider for OAUTHBEARER, as file:///PATH or https://HOST/PATH. Required: unsigned tokens are refused.",
    )
    jwks_refresh_ms: Long = _per_mechanism(
        HOUR_MS,
        name="sasl.oauthbearer.jwks.endpoint.refresh.ms",
        at_least=1,
        doc="The keys are read again after this time, and when a token names an unknown key.",
    )
    jwks_retry_backoff_ms: Long = _per_mechanism(
        100,
        name="sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        at_least=1,
        doc="Wait before a failed read of the keys is retried; doubles each time.",
    )
    jwks_retry_backoff_max_ms: Long = _per_mechanism(
        10 * SECOND_MS,
        name="sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        at_least=1,
        doc="Maximum wait before a failed read of the keys is retried.",
    )
    oauth_expected_audience: tuple[str, ...] = _per_mechanism(
        (), name="sasl.oauthbearer.expected.audience", doc="Audiences of which a token must name one."
    )
    oauth_expected_issuer: str = _per_mechanism("", name="sasl.oauthbearer.expected.issuer", doc="Issuer that a token must name.")
    oauth_unverified_audience: bool = _per_mechanism(
        False,
        name="sasl.oauthbearer.allow.unverified.audience",
        doc="Whether tokens of any audience are valid if sasl.oauthbearer.expected.audience is not set.",
    )
    oauth_unverified_issuer: bool = _per_mechanism(
        False,
        name="sasl.oauthbearer.allow.unverified.issuer",
        doc="Whether tokens of any issuer are valid if sasl.oauthbearer.expected.issuer is not set.",
    )
    oauth_clock_skew_seconds: int = _per_mechanism(
        30,
        name="sasl.oauthbearer.clock.skew.seconds",
        at_least=0,
        doc="Permitted difference between the clocks of the identity provider and of the broker.",
    )
    oauth_scope_claim: str = _per_mechanism("scope", name="sasl.oauthbearer.scope.claim.name", doc="Claim of a token with its scopes.")
    oauth_sub_claim: str = _per_mechanism("sub", name="sasl.oauthbearer.sub.claim.name", doc="Claim of a token with the user's name.")
    oauth_token_url: str = _per_mechanism(
        "",
        name="sasl.oauthbearer.token.endpoint.url",
        form=_URL,
        doc="Where a broker gets its token for other brokers: https://HOST/PATH for client credentials, or file:///PATH of a token.",
    )
    sasl_login_read_timeout_ms: int = _per_mechanism(None, at_least=1, doc="Timeout of requests to the identity provider; 10 s if not set.")
    kerberos_service_name: str = option(
        "",
        name="sasl.kerberos.service.name",
        scope="per-broker",
        per_listener=True,
        doc="Service name of the brokers in Kerberos, such as kafka; serviceName of the login module is the same.",
    )
    kerberos_principal_rules: str = option(
        DEFAULT,
        name="sasl.kerberos.principal.to.local.rules",
        check=check_rules,
        scope="per-broker",
        per_listener=True,
        doc="How Kerberos principals become user names, separated by commas: DEFAULT, or rules in the form of Hadoop and Kafka.",
    )
    delegation_token_secret_key: Secret = option("", doc="Key of delegation tokens, the same on all brokers. Empty: tokens are disabled.")
    delegation_token_master_key: Secret = option("", doc="Older name of delegation.token.secret.key, which takes precedence.")
    delegation_token_max_lifetime_ms: Long = option(7 * DAY_MS, at_least=1, doc="Time after which a token cannot be renewed.")
    delegation_token_expiry_time_ms: Long = option(DAY_MS, at_least=1, doc="Time after which a token expires if it is not renewed.")
    delegation_token_expiry_check_ms: Long = option(
        HOUR_MS, name="delegation.token.expiry.check.interval.ms", at_least=1, doc="Interval at which expired tokens are deleted."
    )

    delegation_tokens_max: int = option(
        10_000, name="ottla.delegation.tokens.max", at_least=0, doc="Maximum number of delegation tokens; further ones are refused."
    )

    @property
    def token_key(self) -> str:
        """Key of delegation tokens; empty: they are disabled."""
        return self.delegation_token_secret_key or self.delegation_token_master_key
