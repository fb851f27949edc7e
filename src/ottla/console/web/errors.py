"""Errors as pages: what happened, why, and what to do."""

from __future__ import annotations

from typing import Self

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ottla.base.options import ConfigError
from ottla.base.readable import size_text
from ottla.client.errors import BrokerIncompatible, ConnectionFailed
from ottla.console.web.page import page
from ottla.wire import errors
from ottla.wire.errors import KafkaError

#: Errors of cluster access that mean: this login of the console may not do it.
REFUSED = (errors.ClusterAuthorizationFailed, errors.GroupAuthorizationFailed, errors.TopicAuthorizationFailed)
STATUS_REFUSED, STATUS_MISSING, STATUS_INVALID, STATUS_UPSTREAM = 403, 404, 400, 502


class Problem(msgspec.Struct, frozen=True):
    """A problem of a request, as a page tells it."""

    status: int
    title: str
    what: str
    remedies: list[str] = []
    commands: list[str] = []

    @classmethod
    def unknown_host(cls, host: str) -> Self:
        """A Host header that is not a name of the console."""
        name = host[:100]
        return cls(
            421,
            "The console has another name",
            f"The request names the host {name!r}. It answers only to its own names, so that pages of other sites cannot reach it.",
            ["Use the address that the console prints when it starts, or allow this name."],
            [f"ottla console --host {name.rpartition(':')[0] or name}"] if name and name.isprintable() and " " not in name else [],
        )

    @classmethod
    def foreign_form(cls) -> Self:
        """A form without the token of the session."""
        return cls(
            STATUS_REFUSED,
            "This form is no longer valid",
            "The form was loaded in an earlier session, or comes from another site. Nothing was changed.",
            ["Go back, reload the page, and send the form again."],
        )

    @classmethod
    def large_form(cls, most: int) -> Self:
        """A form above the limit."""
        return cls(
            413,
            "The form is too large",
            f"The console accepts forms of up to {size_text(most)}. Nothing was changed.",
            ["Write large records with the command line."],
            ["ottla produce TOPIC < FILE"],
        )

    @classmethod
    def read_only(cls) -> Self:
        """A change, in read-only mode."""
        return cls(STATUS_REFUSED, "The console is read-only", "It was started with --read-only. Nothing was changed.")

    @classmethod
    def role_missing(cls, has: str, needs: str) -> Self:
        """A change that needs another role."""
        return cls(
            STATUS_REFUSED,
            "Your role does not allow this",
            f"You have the role {has}; this needs the role {needs}. Nothing was changed.",
            ["Ask an administrator of the console for the role."],
        )

    @classmethod
    def missing(cls, what: str) -> Self:
        """A thing that does not exist."""
        return cls(STATUS_MISSING, "Not found", what, ["Check the address, or look for it in the list."])


class Refused(Exception):
    """Ends a request with a page about the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


def invalid(what: str, remedy: str = "Go back and correct the form.") -> Refused:
    """The exception for an argument that is not valid."""
    return Refused(Problem(STATUS_INVALID, "The request is not valid", f"{what} Nothing was changed.", [remedy]))


def explain(error: Exception, flags: str = "") -> Problem:
    """The problem behind an exception of the clients."""
    text = " ".join(str(error).split())
    text = text[:1].upper() + text[1:]
    match error:
        case Refused():
            return error.problem
        case ConnectionFailed():
            remedies = ["Check that a broker runs at these bootstrap servers, and that this machine can reach its listeners."]
            return Problem(STATUS_UPSTREAM, "The cluster cannot be reached", text, remedies, [f"ottla doctor{flags}"])
        case errors.RequestTimedOut():
            remedies = ["Try again. If it takes as long again, look for brokers that are overloaded or away."]
            return Problem(504, "The cluster did not answer in time", text, remedies, [f"ottla doctor{flags}"])
        case errors.UnknownTopicOrPartition():
            return Problem(STATUS_MISSING, "Topic not found", text, ["It may have been deleted. Topics that exist are in the list."])
        case errors.GroupIdNotFound():
            return Problem(STATUS_MISSING, "Group not found", text, ["It may have expired. Groups that exist are in the list."])
        case errors.SecurityDisabled():
            remedies = ["Set authorizer.class.name on the brokers to use access rules."]
            return Problem(STATUS_MISSING, "The cluster has no access rules", text, remedies)
        case BrokerIncompatible():
            return Problem(STATUS_UPSTREAM, "The brokers are too old for this", text, ["Upgrade the brokers, or use another page."])
        case _ if isinstance(error, REFUSED):
            remedies = ["Add an access rule for the console's user."]
            return Problem(STATUS_REFUSED, "The cluster refuses this to the console's user", text, remedies, [f"ottla acl list{flags}"])
        case KafkaError():
            return Problem(STATUS_UPSTREAM, "The cluster refused the request", text, ["Correct the request, or try again."])
        case ConfigError() | ValueError() | TypeError():
            return Problem(STATUS_INVALID, "The request is not valid", text, ["Go back and correct the form."])
        case _:
            remedies = ["Look into the console's log. If it happens again, please report it as a bug."]
            return Problem(500, "The console failed", f"{type(error).__name__}: {text}", remedies)


def problem_page(request: Request, problem: Problem) -> Response:
    """The page about a problem."""
    return page(request, "problem.html", status=problem.status, title=problem.title, problem=problem)
