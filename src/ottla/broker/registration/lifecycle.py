"""This broker's standing in the cluster: registered under a session of the store, or for the moment not to be believed.

::

                 registered                    suspended                       lost
    starting ──────────────▶ standing ──────────────────────▶ silent ────────────────────▶ unregistered ──┐
                                 ▲                               │ connected, same registration           │ connected
                                 │◀──────────────────────────────┘                                        │
                                 └────────────────────────────────────────────────────────────────────────┘ registered anew

A broker whose session is suspended may have been forgotten: another one may lead what it led. So it leads nothing from that moment on;
whoever waits is told that it is no leader, and nothing more is acknowledged. When the session turns out to have lived on, it leads again
what the image says. When the session is lost it registers anew, with a new broker epoch, and leads what the controller then elects it for,
under larger leader epochs. Source: KIP-380 for broker epochs.

An earlier life of this broker may still be registered, until the store gives its session up. One at this broker's own address is replaced
at once, since nobody else can listen there; another address may be another broker of the same number, which is waited for as long as a
session lives, and then refused. A broker that was replaced so while it lived stops.
"""

from typing import TYPE_CHECKING

from ottla.base.ports import Op, SessionState, StoreResult
from ottla.broker import effects
from ottla.store import layout

if TYPE_CHECKING:
    from ottla.broker.node import Node
    from ottla.broker.registration.replica_health import Told
    from ottla.log.directory import LogDirectory


def _clean_since(directory: "LogDirectory") -> int:
    return directory.clean_since if directory.clean_start else -1


class Standing:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: Since this registration the broker stopped in order each time, and lost nothing; -1 when it did not, before it is registered.
        self.clean_since = min((_clean_since(directory) for directory in node.directories), default=-1)
        #: Whether the session is heard.
        self.connected = True
        #: Creation zxid of our registration, the broker epoch; None while there is none.
        self.epoch: int | None = None
        #: A session was lost, so nothing of what the store said under it makes this broker a leader.
        self._lost = False
        self._registering = False
        #: When another broker of our number is taken for a living one; None while there is none.
        self._patience_ms: int | None = None
        #: The store did not answer; the next tick tries again.
        self._retry = False
        #: Our registration was deleted under a session that lives: whoever is registered now did it.
        self._ousted = False

    @property
    def may_lead(self) -> bool:
        """Whether a partition state that names this broker makes it the leader."""
        return self.connected and (self.epoch is not None or not self._lost)

    def register(self) -> None:
        """Become one of the cluster's brokers."""
        node = self._node
        if self._registering or self.epoch is not None or node.stopping:
            return
        self._registering = True
        path = layout.broker(node.broker_id)
        created = Op("create", path, layout.encode_broker(self.description()), ephemeral=True)
        ops = (Op("delete", path), created) if self._own_remains() and not self._ousted else (created,)
        told = node.unfit.registering()
        node.submit(ops, lambda result: self._registered(result, told))

    def session_changed(self, state: SessionState) -> None:
        """The store's client tells what became of the session."""
        if state == "connected":
            self._connected()
        elif self.connected or state == "lost":
            self.connected = False
            if state == "lost":
                self.epoch, self._lost = None, True
            self._node.effects.append(effects.Warn(message=f"broker {self._node.broker_id}: the session with the store is {state}"))
            self._node.controller.step_down()
            self._node.partitions.step_down()

    def broker_changed(self) -> None:
        """Our own registration changed in the store."""
        node = self._node
        found = node.image.brokers.get(node.broker_id)
        if self.epoch is None:
            if found is None and self._patience_ms is not None:
                self.register()
        elif found is None:
            # Other brokers believe now that this one is gone.
            self.epoch = None
            if self.connected:
                self._ousted = True
                self.register()

    def tick(self) -> None:
        """Time passed: try again what the store did not answer."""
        node = self._node
        if self._retry and self.connected:
            self._retry = False
            self.register()
        if self._patience_ms is not None and node.now_ms >= self._patience_ms and self.epoch is None:
            self._refuse()

    def _connected(self) -> None:
        node = self._node
        if self.connected:
            return
        self.connected = True
        node.effects.append(effects.Warn(message=f"broker {node.broker_id}: the session with the store is back"))
        found = node.image.brokers.get(node.broker_id)
        if self.epoch is not None and found is not None and found.epoch == self.epoch:
            node.partitions.resume()
            node.controller.start()
        else:
            self.epoch, self._lost = None, True
            self.register()

    def description(self) -> layout.BrokerRegistration:
        """What a registration says of this broker now."""
        node = self._node
        host, port = node.address
        offline, impaired, full = node.unfit.description()
        return layout.BrokerRegistration(
            host=host,
            port=port,
            endpoints=(f"PLAINTEXT://{host}:{port}",),
            timestamp_ms=node.wall_ms,
            rack=node.options.broker_rack or None,
            leaving=node.leaving.begun,
            offline=offline,
            impaired=impaired,
            full=full,
            clean_since=self.clean_since,
            unheard=node.controller.hearing.unheard,
            fenced=node.controller.hearing.fenced,
        )

    def redescribed(self) -> tuple[Op, ...]:
        """Says anew, in the registration there is, what this broker is like now; nothing where there is none of this life, as far as the
        image shows. Under its version: what is told later must not be overtaken by what was told before, nor be of another life."""
        registered = self._node.image.brokers.get(self._node.broker_id)
        if self.epoch is None or registered is None or registered.epoch != self.epoch:
            return ()
        return (Op("set", layout.broker(self._node.broker_id), layout.encode_broker(self.description()), version=registered.version),)

    def _own_remains(self) -> bool:
        """Whether what is registered is an earlier life of this broker."""
        found = self._node.image.brokers.get(self._node.broker_id)
        return found is not None and self._node.options.zookeeper_connect != "" and (found.host, found.port) == self._node.address

    def _registered(self, result: StoreResult, told: "Told") -> None:
        self._registering = False
        node = self._node
        if result.error is None:
            self.epoch = result.states[-1].created_zxid
            if self.clean_since < 0:
                # From now on nothing is lost but by another crash.
                self.clean_since = self.epoch
            node.unfit.registered(told)
            node.controller.hearing.registered()
            self._patience_ms = None
            self._ousted = False
            node.partitions.resume()
            node.fetchers.stir_all()
            node.controller.start()
        elif result.error in ("unavailable", "session"):
            self._retry = True
        elif self._ousted:
            self._refuse()
        elif node.broker_id not in node.image.brokers or self._own_remains():
            # What was in the way went meanwhile, or is ours to replace.
            self.register()
        elif node.options.zookeeper_connect and self._patience_ms is None:
            # A session lives so long after its last sign of life, and a little longer when the ensemble elects a leader.
            self._patience_ms = node.now_ms + node.options.zookeeper_session_timeout_ms * 3 // 2
            node.effects.append(
                effects.Warn(message=f"broker {node.broker_id} is registered; waiting, in case it is a former life of this one")
            )
        elif self._patience_ms is None:
            self._refuse()

    def _refuse(self) -> None:
        node = self._node
        found = node.image.brokers.get(node.broker_id)
        where = f", at {found.host}:{found.port}" if found is not None else ""
        reason = f"broker id {node.broker_id} is already registered in this cluster{where}; give this one another"
        node.effects.append(effects.Halt(reason=reason))
