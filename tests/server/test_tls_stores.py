"""Java's view of TLS: distinguished names and key stores, compared with what its own tools write. Skipped without Java."""

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from certificates import Certificate
from ottla.base.options import ConfigError
from ottla.base.ssl_options import ListenerSslOptions
from ottla.net.tls.context import server_context
from ottla.net.tls.principal import PrincipalMapper, distinguished_name
from ottla.net.tls.stores import load_trusted

pytestmark = pytest.mark.server

needs_java = pytest.mark.skipif(shutil.which("java") is None or shutil.which("keytool") is None, reason="there is no Java")
PRINT_NAME = """
import java.io.*; import java.nio.file.*; import java.security.cert.*;
public class PrintNames { public static void main(String[] files) throws Exception {
  PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
  for (String file : files) { try (InputStream in = Files.newInputStream(Path.of(file))) {
    X509Certificate found = (X509Certificate) CertificateFactory.getInstance("X.509").generateCertificate(in);
    out.println(found.getSubjectX500Principal().getName()); } } } }
"""
UTF8, PRINTABLE, IA5 = _ASN1Type.UTF8String, _ASN1Type.PrintableString, _ASN1Type.IA5String


def names() -> list[x509.Name]:
    """Names with what needs care: order, escapes, several attributes in one part, attributes without a keyword, other types of text."""

    def one(oid: x509.ObjectIdentifier, text: str, kind: _ASN1Type | None = None) -> x509.NameAttribute[str]:
        return x509.NameAttribute(oid, text, kind)

    cn, org, unit = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
    return [
        x509.Name([one(NameOID.COUNTRY_NAME, "DE"), one(NameOID.STATE_OR_PROVINCE_NAME, "Berlin"), one(NameOID.LOCALITY_NAME, "Mitte"),
                   one(org, "Example"), one(unit, "Eng"), one(cn, "alice")]),
        x509.Name([one(org, 'Smith, "Jones" & Sons; <a+b=c>\\'), one(cn, "#first")]),
        x509.Name([one(org, " spaces  "), one(cn, "M\u00fcller \u65e5\u672c")]),
        x509.Name([x509.RelativeDistinguishedName(part) for part in ([one(org, "Example")], [one(cn, "both"), one(unit, "parts")])]),
        x509.Name([one(NameOID.EMAIL_ADDRESS, "a@example.com", IA5), one(cn, "mail")]),
        x509.Name([one(NameOID.DOMAIN_COMPONENT, "example", IA5), one(NameOID.DOMAIN_COMPONENT, "com", IA5), one(cn, "dc")]),
        x509.Name([one(NameOID.USER_ID, "u1"), one(NameOID.STREET_ADDRESS, "1 Road"), one(NameOID.SERIAL_NUMBER, "42", PRINTABLE),
                   one(cn, "x", UTF8)]),
    ]  # fmt: skip


@needs_java
def test_distinguished_names_are_written_as_java_writes_them(tmp_path: Path) -> None:
    authority = Certificate.authority()
    paths = []
    for number, name in enumerate(names()):
        path = tmp_path / f"{number}.der"
        path.write_bytes(authority.issue(name).certificate.public_bytes(Encoding.DER))
        paths.append(path)
    (tmp_path / "PrintNames.java").write_text(PRINT_NAME)
    printed = subprocess.run(["java", str(tmp_path / "PrintNames.java"), *map(str, paths)], check=True, capture_output=True, timeout=120)
    read = [x509.load_der_x509_certificate(path.read_bytes()).subject for path in paths]
    assert [distinguished_name(name) for name in read] == printed.stdout.decode().splitlines()


@needs_java
def test_key_stores_and_trust_stores_of_keytool_are_read(tmp_path: Path) -> None:
    pytest.importorskip("jks")

    def keytool(*arguments: str) -> None:
        subprocess.run(["keytool", *arguments, "-storepass", "storepass"], check=True, capture_output=True, timeout=120)

    for kind in ("JKS", "PKCS12"):
        store, trusted = tmp_path / f"own.{kind}", tmp_path / f"trusted.{kind}"
        keytool("-genkeypair", "-keyalg", "RSA", "-alias", "own", "-dname", "CN=broker,O=Example", "-storetype", kind, "-keystore",
                str(store),
                *(("-keypass", "keypass") if kind == "JKS" else ()))  # fmt: skip
        keytool("-exportcert", "-alias", "own", "-storetype", kind, "-keystore", str(store), "-file", str(tmp_path / "own.der"))
        keytool(
            "-importcert", "-noprompt", "-alias", "ca", "-storetype", kind, "-keystore", str(trusted), "-file", str(tmp_path / "own.der")
        )
        texts = {
            "ssl.keystore.type": kind, "ssl.keystore.location": str(store), "ssl.keystore.password": "storepass",
            "ssl.truststore.type": kind, "ssl.truststore.location": str(trusted), "ssl.truststore.password": "storepass",
        }  # fmt: skip
        if kind == "JKS":
            with pytest.raises(ConfigError, match=r"ssl\.key\.password: the key own in .* needs another password"):
                server_context(ListenerSslOptions.of(texts), "none")
            texts["ssl.key.password"] = "keypass"
        found = server_context(ListenerSslOptions.of(texts), "required")
        assert found.own is not None and distinguished_name(found.own.certificate.subject) == "CN=broker,O=Example"
        assert found.trusted == (found.own.certificate,)
        del texts["ssl.truststore.password"]
        if kind == "JKS":
            assert load_trusted(ListenerSslOptions.of(texts)) == found.trusted


#: Those of Kafka's documentation.
DOCUMENTED = "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),O=(.*?)$/$1@$2/L,DEFAULT"


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", "CN=a,OU=b", "User:CN=a,OU=b"),
        (DOCUMENTED, "CN=Duke,OU=ServiceUsers,O=x", "User:Duke"),
        (DOCUMENTED, "CN=Duke,OU=SME,O=x", "User:duke@sme"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "OU=x,CN=duke", "User:DUKE"),
        ("RULE:^CN=(.*?)$/$1$9\\$1/", "CN=a", "User:a$9$1"),
        ("RULE:^CN=(.)$/$12/", "CN=a", "User:a2"),
        (r"RULE:^CN=(.*?),OU=a\/b$/$1/", "CN=x,OU=a/b", "User:x"),
    ],
)  # fmt: skip
def test_rules_map_names_to_principals_as_in_kafka(rules: str, name: str, principal: str) -> None:
    mapper = PrincipalMapper(rules)
    found = next(found for rule in mapper._rules if (found := rule.apply(name)) is not None)
    assert f"User:{found}" == principal


@pytest.mark.parametrize("rules", ["", "CN=x", "RULE:^CN=(.*)$", "RULE:^CN=(.*$/$1/", "RULE:a/b/LU", "RULE:a/b/ DEFAULT"])
def test_rules_in_another_form_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapper(rules)
