"""Rules that map Kerberos principals to user names: sasl.kerberos.principal.to.local.rules.

::

    DEFAULT                              alice@REALM, alice/host@REALM   ->  alice, for the broker's own realm
    RULE:[1:$1@$0](.*@ADMIN\\.EXAMPLE)s/@.*//
         │ │       │                  └─ replaces what matches; a g after it: each occurrence
         │ │       └─ applies if this expression matches all of the text; without it, always
         │ └─ makes a text of the realm ($0) and the parts of the name ($1, $2)
         └─ applies to names with this number of parts
    RULE:[...](...)s/.../.../L           the result in lower case; U: in upper case

The first rule that applies decides. A result with ``/`` or ``@`` is refused, and so is a principal without a rule.
Source: Kafka's KerberosShortNamer and KerberosRule, which have Hadoop's rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: Only the rule of the broker's own realm.
DEFAULT = "DEFAULT"
_RULE = re.compile(
    r"(?P<default>DEFAULT)"
    r"|RULE:\[(?P<parts>\d+):(?P<form>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<before>[^/]*)/(?P<after>[^/]*)/(?P<repeat>g)?)?/?(?P<case>[LU])?"
)
_SEPARATOR = re.compile(r"\s*(?:,\s*|$)")
_PARAMETER = re.compile(r"\$(\d+)")


class KerberosRulesError(ValueError):
    """The rules cannot be read; the message says why."""


class NoRule(ValueError):
    """No rule maps a principal to a user; the message names it."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule; ``form`` None: DEFAULT."""

    form: str | None = None
    parts: int = 0
    match: re.Pattern[str] | None = None
    before: re.Pattern[str] | None = None
    after: str = ""
    repeat: bool = False
    case: str = ""

    def apply(self, realm: str, names: Sequence[str], own_realm: str) -> str | None:
        """The user; None if the rule does not apply."""
        if self.form is None:
            return names[0] if realm == own_realm else None
        if len(names) != self.parts:
            return None
        values = (realm, *names)
        text = _PARAMETER.sub(lambda found: values[int(found[1])], self.form)
        if self.match is not None and not self.match.fullmatch(text):
            return None
        if self.before is not None:
            text = self.before.sub(self.after, text, count=0 if self.repeat else 1)
        return {"L": text.lower(), "U": text.upper()}.get(self.case, text)


class KerberosRules:
    """The rules of a broker."""

    def __init__(self, text: str) -> None:
        """Raises: KerberosRulesError."""
        self._rules = _parsed(text)

    def user(self, principal: str, own_realm: str) -> str:
        """The user of a principal, ``name[/host]@REALM``. Raises: NoRule."""
        name, _, realm = principal.rpartition("@")
        for rule in self._rules:
            found = rule.apply(realm, name.split("/"), own_realm)
            if found is not None:
                if not found or "/" in found or "@" in found:
                    raise NoRule(f"the user of {principal} would be {found!r}, which is no simple name")
                return found
        raise NoRule(f"no rule maps {principal} to a user")


def _parsed(text: str) -> list[_Rule]:
    rules, rest = [], text.strip()
    while rest:
        found = _RULE.match(rest)
        end = _SEPARATOR.match(rest, found.end()) if found is not None else None
        if found is None or end is None:
            raise KerberosRulesError(f"expected DEFAULT or RULE:[PARTS:FORM](MATCH)s/BEFORE/AFTER/ at {rest!r}")
        rest = rest[end.end() :]
        rules.append(_Rule() if found["default"] else _rule(found))
    if not rules:
        raise KerberosRulesError("expected at least one rule, such as DEFAULT")
    return rules


def _rule(found: re.Match[str]) -> _Rule:
    parts = int(found["parts"])
    for number in _PARAMETER.findall(found["form"]):
        if int(number) > parts:
            raise KerberosRulesError(f"${number} in {found[0]!r} is beyond its {parts} parts")
    try:
        match = None if found["match"] is None else re.compile(found["match"])
        before = None if found["before"] is None else re.compile(found["before"])
        # Java's references to groups: $1.
        after = _PARAMETER.sub(r"\\g<\1>", (found["after"] or "").replace("\\", "\\\\"))
        if before is not None:
            groups = [int(number) for number in _PARAMETER.findall(found["after"])]
            if max(groups, default=0) > before.groups:
                raise KerberosRulesError(f"${max(groups)} in {found[0]!r} is no group of its expression")
    except re.error as error:
        raise KerberosRulesError(f"{found[0]!r} has an invalid regular expression: {error}") from None
    return _Rule(found["form"], parts, match, before, after, bool(found["repeat"]), found["case"] or "")


def check_rules(text: str) -> KerberosRules:
    """Raises: KerberosRulesError."""
    return KerberosRules(text)
