"""Errors of the registry's HTTP API, with Confluent's codes.

The first three digits of a code are the HTTP status, except 409, which has no further digits for clients of all ages.
"""

from __future__ import annotations


class RegistryError(Exception):
    """A request fails with this code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.code if self.code < 1000 else self.code // 100


def subject_not_found(subject: str) -> RegistryError:
    return RegistryError(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RegistryError:
    return RegistryError(40402, f"Version {version} not found.")


def schema_not_found(what: int | str | None = None) -> RegistryError:
    return RegistryError(40403, "Schema not found" if what is None else f"Schema {what} not found")


def subject_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(40406, f"Subject '{subject}' Version {version} was soft deleted. Set permanent=true to delete permanently")


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(40407, f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted")


def level_not_configured(subject: str) -> RegistryError:
    return RegistryError(40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def mode_not_configured(subject: str) -> RegistryError:
    return RegistryError(40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible_schema(subject: str, reasons: list[str]) -> RegistryError:
    details = ", ".join(reasons)
    return RegistryError(
        409, f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: [{details}]'
    )


TOO_DEEP = "its types are nested too deeply"


def invalid_schema(why: str) -> RegistryError:
    return RegistryError(42201, f"Invalid schema: {why}")


def invalid_version(version: str) -> RegistryError:
    return RegistryError(
        42202,
        f"The specified version '{version}' is not a valid version id. Allowed values are between [1, 2^31-1] and the string \"latest\"",
    )


def invalid_level(given: object) -> RegistryError:
    return RegistryError(
        42203, f"Invalid compatibility level {given!r}. Valid values are none, backward, forward, full, backward_transitive,"
        " forward_transitive, and full_transitive"
    )  # fmt: skip


def invalid_mode(given: object) -> RegistryError:
    return RegistryError(42204, f"Invalid mode {given!r}. Valid values are READWRITE, READONLY, READONLY_OVERRIDE, and IMPORT")


def not_permitted(why: str) -> RegistryError:
    return RegistryError(42205, why)


def reference_exists(subject: str, version: int) -> RegistryError:
    return RegistryError(42206, f"One or more references exist to the schema of subject '{subject}', version {version}")


def invalid_subject(subject: str) -> RegistryError:
    return RegistryError(42208, f"The specified subject '{subject}' is not a valid.")


def context_not_empty(context: str) -> RegistryError:
    return RegistryError(42211, f"The specified context '{context}' is not empty.")


def store_error(why: str) -> RegistryError:
    return RegistryError(50001, why)


def timed_out(why: str) -> RegistryError:
    return RegistryError(50002, why)


def forwarding_failed(why: str) -> RegistryError:
    return RegistryError(50003, why)


def unknown_leader() -> RegistryError:
    return RegistryError(50004, "No instance of the registry is elected to write; try again")


class InvalidSchema(ValueError):
    """A text is not a schema of its type, or a reference of it cannot be resolved."""
