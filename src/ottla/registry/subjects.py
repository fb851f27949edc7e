"""Names of subjects, qualified by contexts.

    orders-value             subject orders-value of the default context `.`
    :.staging:orders-value   subject orders-value of the context .staging
    :.staging:               the context .staging itself, in settings
    :.__GLOBAL:              settings of all contexts
    :*:                      all contexts, in listings

A context has its own ids: schema 1 of `.staging` is not schema 1 of the default context.
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_CONTEXT = "."
GLOBAL_CONTEXT = ".__GLOBAL"
ALL_CONTEXTS = ":*:"
#: Names that stand for settings, not for subjects.
RESERVED = ("__GLOBAL", "__EMPTY")


class QualifiedSubject(NamedTuple):
    """A subject and its context."""

    context: str
    subject: str

    @property
    def prefix(self) -> str:
        """The context as a prefix of subjects; empty for the default context."""
        return "" if self.context == DEFAULT_CONTEXT else f":{self.context}:"

    @property
    def text(self) -> str:
        """The name, without the default context."""
        return self.prefix + self.subject


def parse_subject(text: str) -> QualifiedSubject:
    """The parts of a name."""
    if text.startswith((":.", ALL_CONTEXTS)):
        context, _, subject = text[1:].partition(":")
        return QualifiedSubject(context, subject)
    return QualifiedSubject(DEFAULT_CONTEXT, text)


def context_of(text: str) -> str:
    """The context of a subject's name."""
    return parse_subject(text).context


def qualified_beside(parent: str, subject: str) -> str:
    """A subject named by a schema of `parent`: of the same context, unless it names another."""
    return subject if subject.startswith(":.") else parse_subject(parent).prefix + parse_subject(subject).subject


def is_valid_subject(text: str, *, for_settings: bool = False) -> bool:
    """Whether a schema may be registered, or settings may be made, under this name."""
    if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in text):
        return False
    found = parse_subject(text)
    if found.subject in RESERVED or (found.context == "*"):
        return False
    return for_settings or (found.subject not in ("", "*") and found.context != GLOBAL_CONTEXT)
