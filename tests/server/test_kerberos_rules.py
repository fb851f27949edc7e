"""Rules that map Kerberos principals to users: Kafka's own examples, and rules that are refused."""

import pytest

from ottla.base.kerberos_rules import KerberosRules, KerberosRulesError, NoRule

#: Of Kafka's KerberosNameTest.
RULES = r"RULE:[1:$1](App\..*)s/App\.(.*)/$1/g,RULE:[2:$1](App\..*)s/App\.(.*)/$1/g,DEFAULT"
CASE = r"RULE:[1:$1]/L,RULE:[2:$1](Test.*)s/ABC///L,RULE:[2:$1](ABC.*)s/ABC/XYZ/g/L,"
CASE += r"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g/U,RULE:[2:$1]/L,DEFAULT"


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        ("DEFAULT", "alice@REALM.COM", "alice"),
        ("DEFAULT", "kafka/broker1.example@REALM.COM", "kafka"),
        (RULES, "App.service-name/example.com@REALM.COM", "service-name"),
        (RULES, "App.service-name@REALM.COM", "service-name"),
        (RULES, "user/host@REALM.COM", "user"),
        (CASE, "User@REALM.COM", "user"),
        (CASE, "TestABC/host@FOO.COM", "test"),
        (CASE, "ABC_User_ABC/host@FOO.COM", "xyz_user_xyz"),
        (CASE, "App.SERVICE-name/example.com@REALM.COM", "SERVICE-NAME"),
        (CASE, "User/root@REALM.COM", "user"),
        (r"RULE:[1:$1@$0](.*@OTHER\.COM)s/@.*//", "bob@OTHER.COM", "bob"),
        ("RULE:[2:$2-$1]", "a/b@ANY", "b-a"),
        ("RULE:[1:$1]s/a/x/", "banana@ANY", "bxnana"),
        ("RULE:[1:$1]s/a/x/g", "banana@ANY", "bxnxnx"),
        ("RULE:[1:$1]", "alice@ANY.WHERE", "alice"),
    ],
)
def test_a_principal_becomes_the_user_of_the_first_rule_that_applies(rules: str, principal: str, user: str) -> None:
    assert KerberosRules(rules).user(principal, "REALM.COM") == user


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", "alice@OTHER.COM"),
        (r"RULE:[1:$1@$0](.*@OTHER\.COM)s/@.*//", "bob@OTHER.COM.EXAMPLE"),
        ("RULE:[2:$1]", "alice@REALM.COM"),
        ("RULE:[1:$1@$0]", "alice@REALM.COM"),
        ("RULE:[2:$1/$2]", "alice/host@REALM.COM"),
        ("RULE:[1:$1]s/.*//", "alice@REALM.COM"),
    ],
)
def test_a_principal_without_a_simple_user_is_refused(rules: str, principal: str) -> None:
    with pytest.raises(NoRule, match=principal.partition("@")[0]):
        KerberosRules(rules).user(principal, "REALM.COM")


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("", "expected at least one rule"),
        ("RULE:[1:$1", "expected DEFAULT or RULE:"),
        ("default", "expected DEFAULT or RULE:"),
        ("DEFAULT,RULE:[1:$2]", r"\$2 in .* is beyond its 1 parts"),
        ("RULE:[1:$1]s/[/x/", "invalid regular expression"),
        ("RULE:[1:$1]s/a/$1/", r"\$1 in .* is no group"),
        ("RULE:[1:$1]s/a/b", "expected DEFAULT or RULE:"),
    ],
)
def test_rules_that_cannot_be_read_are_refused(rules: str, problem: str) -> None:
    with pytest.raises(KerberosRulesError, match=problem):
        KerberosRules(rules)
