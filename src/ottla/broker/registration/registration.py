"""The content of this broker's registration in the store: ``/brokers/ids/<id>``.

Other machines provide parts of it: controlled shutdown sets ``leaving``, replica health provides ``replicas``, controller reachability
provides ``reachability``. The lifecycle creates the node; the machine whose part changed updates it with the operations of ``updated``.
"""

from collections.abc import Callable

from ottla.base.ids import BrokerId
from ottla.base.listeners import first_plaintext
from ottla.base.ports import Op
from ottla.broker.context import BrokerContext
from ottla.broker.metadata.features import SUPPORTED
from ottla.log.directory import LogDirectory
from ottla.store import layout

#: Partition numbers by topic.
ByTopic = dict[str, tuple[int, ...]]
#: In a registration: the epoch of no controller.
NO_EPOCH = -1


def _clean_since(directory: LogDirectory) -> int:
    return directory.clean_since if directory.clean_start else -1


class Registration:
    """The content of the registration."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        #: Broker epoch since which all stops were clean and nothing was lost; -1 if the last stop was not clean, before registration.
        self.clean_since = min((_clean_since(directory) for directory in context.directories), default=-1)
        #: Whether the broker is in controlled shutdown.
        self.leaving = False
        #: Offline, impaired and full replicas.
        self.replicas: Callable[[], tuple[ByTopic, ByTopic, ByTopic]] = lambda: ({}, {}, {})
        #: Epoch of the controller that this broker does not reach, and whether this broker is fenced.
        self.reachability: Callable[[], tuple[int, bool]] = lambda: (NO_EPOCH, False)

    def content(self) -> layout.BrokerRegistration:
        """What a registration says now."""
        context = self._context
        main = first_plaintext(context.endpoints)
        offline, impaired, full = self.replicas()
        unheard, fenced = self.reachability()
        return layout.BrokerRegistration(
            host=main.host if main is not None else None,
            port=main.port if main is not None else -1,
            endpoints=tuple(endpoint.text for endpoint in context.endpoints),
            listener_security_protocol_map={endpoint.listener: endpoint.protocol.value for endpoint in context.endpoints},
            timestamp_ms=context.wall_ms,
            rack=context.options.broker_rack or None,
            leaving=self.leaving,
            offline=offline,
            impaired=impaired,
            full=full,
            clean_since=self.clean_since,
            unheard=unheard,
            fenced=fenced,
            features={name: levels.range for name, levels in SUPPORTED.items()},
        )

    def updated(self) -> tuple[Op, ...]:
        """Operations that update the existing registration; none without a registration of this process. They are conditional on its
        version, so that an older update cannot follow a newer one or change another registration.
        """
        context = self._context
        registered = context.image.brokers.get(BrokerId(context.broker_id))
        if context.epoch is None or registered is None or registered.epoch != context.epoch:
            return ()
        return (Op("set", layout.broker(context.broker_id), layout.encode_broker(self.content()), version=registered.version),)
