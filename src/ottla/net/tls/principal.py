"""The principal of a client's certificate: its distinguished name, changed by ``ssl.principal.mapping.rules``.

::

    RULE:^CN=([^,]+),OU=Eng.*$/$1@eng/L,  RULE:^CN=([^,]+).*$/$1/,  DEFAULT
         pattern             replacement, L: lower case, U: upper case       the name as it is

The first rule whose pattern matches the whole name applies; a name that no rule matches is refused. The name is in the form of RFC 2253,
as Java writes it: ``CN=alice,OU=Eng,O=Example``. Source: KIP-371; Kafka's SslPrincipalMapper.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from ottla.base.options import ConfigError

SETTING = "ssl.principal.mapping.rules"
_KEYWORDS = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_ESCAPED = ',=+<>#;"\\'
_RULE = re.compile(r"(?P<default>DEFAULT)|RULE:(?P<pattern>(\\.|[^\\/])*)/(?P<replacement>(\\.|[^\\/])*)/(?P<case>[LU]?)")
_SEPARATOR = re.compile(r"\s*(,\s*|$)")


def distinguished_name(name: x509.Name) -> str:
    """RFC 2253, as Java's ``X500Principal.getName()``: last part first; parts without a keyword there as OID and encoded value."""
    return ",".join("+".join(map(_part, part)) for part in reversed(name.rdns))


def _part(attribute: x509.NameAttribute[Any]) -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    if keyword is None or not isinstance(attribute.value, str):
        return f"{attribute.oid.dotted_string}=#{_encoded(attribute)}"
    text = "".join("\\" + one if one in _ESCAPED else "\\00" if one == "\0" else one for one in attribute.value)
    bare = text.strip(" ")
    if not bare:
        return f"{keyword}=" + "\\ " * len(text)
    before, after = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    return f"{keyword}=" + "\\ " * before + bare + "\\ " * after


def _encoded(attribute: x509.NameAttribute[Any]) -> str:
    """Tag, length and value in hexadecimal digits."""
    kind, value = attribute._type, attribute.value
    codec = {_ASN1Type.BMPString: "utf-16-be", _ASN1Type.UniversalString: "utf-32-be", _ASN1Type.UTF8String: "utf-8"}.get(kind, "latin-1")
    content = value if isinstance(value, bytes) else value.encode(codec)
    size = len(content)
    length = (
        bytes([size]) if size < 128 else bytes([0x80 + (size.bit_length() + 7) // 8]) + size.to_bytes((size.bit_length() + 7) // 8, "big")
    )
    return (bytes([kind.value]) + length + content).hex()


@dataclass(frozen=True, slots=True)
class _Rule:
    #: None: the name as it is.
    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The changed name; None if the rule does not apply."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        found = self.pattern.sub(self._replaced, name)
        return found.lower() if self.case == "L" else found.upper() if self.case == "U" else found

    def _replaced(self, match: re.Match[str]) -> str:
        """The replacement with Java's references: $1 to $9 and longer, as far as there are groups; a backslash quotes."""
        groups = match.re.groups
        parts: list[str] = []
        at = 0
        text = self.replacement
        while at < len(text):
            if text[at] == "\\" and at + 1 < len(text):
                parts.append(text[at + 1])
                at += 2
                continue
            digits = re.compile(r"\$(\d+)").match(text, at)
            if digits is None:
                parts.append(text[at])
                at += 1
                continue
            number = digits[1]
            while len(number) > 1 and int(number) > groups:
                number = number[:-1]
            if int(number) > groups:
                parts.append(text[at])
                at += 1
                continue
            parts.append(match[int(number)] or "")
            at += 1 + len(number)
        return "".join(parts)


class PrincipalMapper:
    """The rules of a listener."""

    def __init__(self, text: str) -> None:
        """Raises: ConfigError."""
        self._rules: Sequence[_Rule] = _parse(text)

    def principal(self, certificate: x509.Certificate) -> str:
        """``User:NAME``. Raises: ValueError when no rule applies."""
        name = distinguished_name(certificate.subject)
        for rule in self._rules:
            found = rule.apply(name)
            if found is not None:
                return f"User:{found}"
        raise ValueError(f"no rule of {SETTING} applies to {name}")


def _parse(text: str) -> list[_Rule]:
    rules: list[_Rule] = []
    rest = text.strip()
    while rest:
        found = _RULE.match(rest)
        end = _SEPARATOR.match(rest, found.end()) if found is not None else None
        if found is None or end is None:
            raise ConfigError(SETTING, f"expected RULE:PATTERN/REPLACEMENT/, RULE:PATTERN/REPLACEMENT/L or DEFAULT at {rest!r}")
        rest = rest[end.end() :]
        if found["default"]:
            rules.append(_Rule(None))
            continue
        try:
            rules.append(_Rule(re.compile(found["pattern"]), found["replacement"], found["case"]))
        except re.error as error:
            raise ConfigError(SETTING, f"{found['pattern']!r} is no regular expression: {error}") from None
    if not rules:
        raise ConfigError(SETTING, "expected at least one rule, such as DEFAULT")
    return rules
