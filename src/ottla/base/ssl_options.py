"""Settings of TLS that brokers and clients share, with Kafka's names and defaults. ``net/tls`` gives them their meaning."""

from ottla.base.options import Options, option

#: Types of key stores and trust stores.
STORE_TYPES = ("JKS", "PKCS12", "PEM")


class SslOptions(Options):
    """Where the certificates are, and which versions and ciphers are allowed."""

    ssl_keystore_type: str = option(
        "ssl.keystore.type", "JKS", choices=STORE_TYPES, scope="per-broker", per_listener=True, doc="Type of the key store."
    )
    ssl_keystore_location: str = option(
        "ssl.keystore.location", "", scope="per-broker", per_listener=True,
        doc="File with the own certificate, its chain and its private key. A broker reads it again when it changes.",
    )  # fmt: skip
    ssl_keystore_password: str = option(
        "ssl.keystore.password", "", secret=True, scope="per-broker", per_listener=True,
        doc="Password of the key store; not for PEM, whose key is encrypted with ssl.key.password.",
    )  # fmt: skip
    ssl_keystore_key: str = option(
        "ssl.keystore.key", "", secret=True, scope="per-broker", per_listener=True,
        doc="Private key in PEM form (PKCS#8), instead of ssl.keystore.location, with ssl.keystore.type=PEM.",
    )  # fmt: skip
    ssl_keystore_certificate_chain: str = option(
        "ssl.keystore.certificate.chain", "", secret=True, scope="per-broker", per_listener=True,
        doc="Own certificate and its chain in PEM form, with ssl.keystore.key.",
    )  # fmt: skip
    ssl_key_password: str = option(
        "ssl.key.password", "", secret=True, scope="per-broker", per_listener=True,
        doc="Password of the private key. Empty: ssl.keystore.password, or, for PEM, a key without encryption.",
    )  # fmt: skip
    ssl_truststore_type: str = option(
        "ssl.truststore.type", "JKS", choices=STORE_TYPES, scope="per-broker", per_listener=True, doc="Type of the trust store."
    )
    ssl_truststore_location: str = option(
        "ssl.truststore.location", "", scope="per-broker", per_listener=True,
        doc="File with the certificates of trusted authorities. A broker reads it again when it changes.",
    )  # fmt: skip
    ssl_truststore_password: str = option(
        "ssl.truststore.password", "", secret=True, scope="per-broker", per_listener=True,
        doc="Password of the trust store; not for PEM. Empty: the store's integrity is not checked.",
    )  # fmt: skip
    ssl_truststore_certificates: str = option(
        "ssl.truststore.certificates", "", secret=True, scope="per-broker", per_listener=True,
        doc="Trusted certificates in PEM form, instead of ssl.truststore.location, with ssl.truststore.type=PEM.",
    )  # fmt: skip
    ssl_enabled_protocols: tuple[str, ...] = option(
        "ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"), choices=("TLSv1.2", "TLSv1.3"), scope="per-broker", per_listener=True,
        doc="Allowed versions of TLS.",
    )  # fmt: skip
    ssl_protocol: str = option(
        "ssl.protocol", "TLSv1.3", choices=("TLS", "TLSv1.2", "TLSv1.3"), scope="per-broker", per_listener=True,
        doc="Highest version of TLS: TLSv1.2 excludes TLSv1.3.",
    )  # fmt: skip
    ssl_cipher_suites: tuple[str, ...] = option(
        "ssl.cipher.suites", (), scope="per-broker", per_listener=True,
        doc="Allowed cipher suites, by their names in Java or OpenSSL. Empty: those of OpenSSL. Of TLS 1.3, all three suites or none.",
    )  # fmt: skip
    ssl_endpoint_identification_algorithm: str = option(
        "ssl.endpoint.identification.algorithm", "https", form=(r"(?i:https)?", "https or nothing"), scope="per-broker", per_listener=True,
        doc="https: the certificate of a server must have the name of its host. Empty: any name is accepted.",
    )  # fmt: skip


class ListenerSslOptions(SslOptions):
    """What a listener has besides the certificates."""

    ssl_client_auth: str = option(
        "ssl.client.auth",
        "none",
        choices=("none", "requested", "required"),
        scope="per-broker",
        per_listener=True,
        doc="Whether clients show a certificate: none, requested (they may), or required. Its name is the principal of the client.",
    )
    ssl_principal_mapping_rules: str = option(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        per_listener=True,
        doc=(
            "How the distinguished name of a client's certificate becomes its principal: rules RULE:PATTERN/REPLACEMENT/[L|U] and "
            "DEFAULT, separated by commas; the first that matches applies."
        ),
    )
    ssl_allow_dn_changes: bool = option(
        "ssl.allow.dn.changes", False, doc="Whether a certificate may be exchanged for one with another distinguished name."
    )
    ssl_allow_san_changes: bool = option(
        "ssl.allow.san.changes",
        False,
        doc="Whether a certificate may be exchanged for one without some of its subject alternative names.",
    )
