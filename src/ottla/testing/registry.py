"""A schema registry in the process of a test: the code of `ottla registry serve`, in its own thread, its topic in the test's broker."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from ottla.client.sync.loop_thread import LoopThread
from ottla.registry.election import InstanceIdentity
from ottla.registry.instance import Instance, InstanceOptions
from ottla.registry.serve import ServeOptions, running


class SchemaRegistry:
    """A registry for tests. As a context manager it runs inside the `with` block. Several instances elect who writes."""

    def __init__(self, settings: dict[str, Any], *, port: int = 0, session_timeout_ms: int = 6000) -> None:
        """`settings`: of the clients, such as a broker's `client_settings()`. `port` 0: a free one, kept for the next start."""
        self._settings = settings
        self.port = port
        self._session_timeout_ms = session_timeout_ms
        self._thread: LoopThread | None = None
        self._stack: AsyncExitStack | None = None
        self._instance: Instance | None = None
        self._url = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Its address, for `schema.registry.url` of any client. Raises: RuntimeError if it does not run."""
        if not self._url:
            raise RuntimeError("the registry does not run: use it in a with statement, or call start()")
        return self._url

    @property
    def is_leader(self) -> bool:
        """Whether this instance is elected to write."""
        return self._instance is not None and self._instance.is_leader

    @property
    def leader_url(self) -> str | None:
        """The address of the instance that is elected to write, as far as this one knows."""
        leader = None if self._instance is None else self._instance.leader
        return None if leader is None else leader.url

    def start(self) -> Self:
        """Starts, and returns when it answers. Does nothing if it runs. Raises: KafkaError, OSError, TimeoutError."""
        if self._thread is None:
            self._thread = LoopThread("ottla-testing-registry")
            try:
                self._thread.call(self._begin())
            except BaseException:
                self._thread.stop()
                self._thread = None
                raise
        return self

    def stop(self) -> None:
        """Stops; the schemas stay in the topic."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.call(self._end())
            thread.stop()
        self._url = ""

    async def _begin(self) -> None:
        instance = InstanceOptions(self._settings, InstanceIdentity("127.0.0.1", 0), session_timeout_ms=self._session_timeout_ms)
        self._stack = AsyncExitStack()
        self._url, self._instance = await self._stack.enter_async_context(running(ServeOptions(instance, "127.0.0.1", self.port)))
        self.port = int(self._url.rpartition(":")[2])

    async def _end(self) -> None:
        if self._stack is not None:
            await self._stack.aclose()
        self._stack = self._instance = None
