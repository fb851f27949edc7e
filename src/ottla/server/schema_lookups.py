"""Asks the schema registry, for brokers with ``ottla.schema.registry.url``, in threads of its own: a slow registry delays no disk.

A schema counts as registered if one of the addresses has it under the subject. An instance that has not read the newest records yet may
not have it, so that the others are asked too before the answer is no.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

from ottla.base.options import ConfigError
from ottla.broker.effects import LookUpSchemas
from ottla.broker.events import SchemasLookedUp
from ottla.broker.metadata.schema_registry_options import SchemaRegistryOptions
from ottla.server.batch_thread import enter_batch_thread

#: Questions at once. They take milliseconds, and brokers cache the answers.
THREADS = 2
NO_URL = "this broker was started without ottla.schema.registry.url"


class SchemaLookups:
    """The registry of one broker."""

    def __init__(self, options: SchemaRegistryOptions) -> None:
        """Raises: ConfigError if the registry cannot be asked with these settings."""
        # Not needed by brokers without a registry, whose start it would delay.
        from ottla.client import schema_registry as client

        self._client = client
        self._timeout_s = options.schema_registry_timeout_ms / 1000
        #: Index of the address that is asked first.
        self._first = 0
        try:
            self._registries = [self._registry(url, options) for url in options.schema_registry_url]
        except (ImportError, ValueError) as error:
            raise ConfigError("ottla.schema.registry.url", str(error)) from None
        self._executor = ThreadPoolExecutor(THREADS, "ottla-schemas", enter_batch_thread)
        self._closed = threading.Event()
        # httpx logs each request.
        logging.getLogger("httpx").setLevel(logging.WARNING)

    def _registry(self, url: str, options: SchemaRegistryOptions) -> Any:
        access = self._client.RegistryAccess(
            (url.rstrip("/"),),
            options.schema_registry_user or None,
            options.schema_registry_password,
            options.schema_registry_token or None,
            options.schema_registry_ca or None,
            options.schema_registry_certificate or None,
            options.schema_registry_key or None,
        )
        access.verification()
        return self._client.Registry(access, attempts=1, timeout_s=self._timeout_s)

    def ask(self, effect: LookUpSchemas, done: Callable[[SchemasLookedUp], object]) -> None:
        """Asks in a thread; ``done`` is called there, unless ``close`` was called before."""
        self._executor.submit(self._answer, effect, done)

    def close(self) -> None:
        """Asks nothing more; a question in progress ends within the timeout, and its answer is dropped."""
        self._closed.set()
        self._executor.shutdown(wait=False, cancel_futures=True)
        for registry in self._registries:
            registry.close()

    def _answer(self, effect: LookUpSchemas, done: Callable[[SchemasLookedUp], object]) -> None:
        ends_s = monotonic() + self._timeout_s
        registered: list[int] = []
        unknown: list[int] = []
        problem = ""
        for number in effect.ids:
            if self._closed.is_set() or monotonic() > ends_s:
                problem = problem or f"{len(effect.ids)} schemas were not asked about within {self._timeout_s:g} s"
                break
            found, failed = self._look_up(effect.subject, number)
            if found is None:
                # The others would fail alike, after as long a wait.
                problem = failed
                break
            (registered if found else unknown).append(number)
        if not self._closed.is_set():
            done(
                SchemasLookedUp(
                    ticket=effect.ticket, subject=effect.subject, registered=tuple(registered), unknown=tuple(unknown), problem=problem
                )
            )

    def _look_up(self, subject: str, number: int) -> tuple[bool | None, str]:
        """Whether an address has the schema under the subject; None and the reason if none answers."""
        answered, problem = False, ""
        for step in range(len(self._registries)):
            index = (self._first + step) % len(self._registries)
            try:
                subjects = self._registries[index].ask("GET", f"/schemas/ids/{number}/subjects")
            except self._client.SchemaNotFound:
                answered = True
                continue
            except (self._client.RegistryFailed, ValueError) as error:
                problem = str(error)
                continue
            if not isinstance(subjects, list):
                problem = "an answer is not a list of subjects"
            elif subject in subjects:
                self._first = index
                return True, ""
            else:
                answered = True
        return (False, "") if answered else (None, problem)
