"""The broker's lifecycle in the cluster: registered under a store session, suspended, or unregistered.

::

                 registered                    suspended                       lost
    starting ──────────────▶ registered ────────────────────▶ suspended ─────────────────▶ unregistered ──┐
                                 ▲                               │ connected, same registration           │ connected
                                 │◀──────────────────────────────┘                                        │
                                 └────────────────────────────────────────────────────────────────────────┘ registered again

While its session is suspended, the broker may have been removed, and others may lead its partitions. So it stops leading at once, answers
NOT_LEADER_OR_FOLLOWER, and acknowledges nothing. If the session survives, it leads again as the image says. If the session is lost, it
registers again with a new broker epoch and leads what the controller then elects it for, under higher leader epochs. Source: KIP-380.

A registration of an earlier process of this broker may remain until its session expires. One at this broker's own address is replaced at
once, because no other process can listen there. One at another address may be another broker with the same id: this broker waits for a
session timeout and then refuses to start. A broker whose registration is replaced while it runs stops.
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


class BrokerLifecycle:
    """State of the registration."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: Broker epoch since which all stops were clean and nothing was lost; -1 if the last stop was not clean, before registration.
        self.clean_since = min((_clean_since(directory) for directory in node.directories), default=-1)
        #: Whether the session is connected.
        self.connected = True
        #: Creation zxid of the registration, which is the broker epoch; None without a registration.
        self.epoch: int | None = None
        #: A session was lost, so partition states written under it do not make this broker a leader.
        self._lost = False
        self._registering = False
        #: When another registration with this id counts as a living broker; None without one.
        self._patience_ms: int | None = None
        #: The store did not answer; the next tick retries.
        self._retry = False
        #: The registration was deleted although the session lives: the present registration belongs to another process.
        self._ousted = False

    @property
    def may_lead(self) -> bool:
        """Whether a partition state that names this broker makes it the leader."""
        return self.connected and (self.epoch is not None or not self._lost)

    def register(self) -> None:
        """Registers the broker."""
        node = self._node
        if self._registering or self.epoch is not None or node.stopping:
            return
        self._registering = True
        path = layout.broker(node.broker_id)
        created = Op("create", path, layout.encode_broker(self.description()), ephemeral=True)
        ops = (Op("delete", path), created) if self._own_remains() and not self._ousted else (created,)
        told = node.replica_health.registering()
        node.submit(ops, lambda result: self._registered(result, told))

    def session_changed(self, state: SessionState) -> None:
        """The session state changed."""
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
        """This broker's registration changed in the store."""
        node = self._node
        found = node.image.brokers.get(node.broker_id)
        if self.epoch is None:
            if found is None and self._patience_ms is not None:
                self.register()
        elif found is None:
            # Other brokers now consider this one as gone.
            self.epoch = None
            if self.connected:
                self._ousted = True
                self.register()

    def tick(self) -> None:
        """Retries what the store did not answer."""
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
        """The content of a registration now."""
        node = self._node
        host, port = node.address
        offline, impaired, full = node.replica_health.description()
        return layout.BrokerRegistration(
            host=host,
            port=port,
            endpoints=(f"PLAINTEXT://{host}:{port}",),
            timestamp_ms=node.wall_ms,
            rack=node.options.broker_rack or None,
            leaving=node.controlled_shutdown.begun,
            offline=offline,
            impaired=impaired,
            full=full,
            clean_since=self.clean_since,
            unheard=node.controller.reachability.unheard,
            fenced=node.controller.reachability.fenced,
        )

    def redescribed(self) -> tuple[Op, ...]:
        """Operations that update the existing registration; none without a registration of this process. They are conditional on its
        version, so that an older update cannot follow a newer one or change another registration.
        """
        registered = self._node.image.brokers.get(self._node.broker_id)
        if self.epoch is None or registered is None or registered.epoch != self.epoch:
            return ()
        return (Op("set", layout.broker(self._node.broker_id), layout.encode_broker(self.description()), version=registered.version),)

    def _own_remains(self) -> bool:
        """Whether the registration belongs to an earlier process of this broker."""
        found = self._node.image.brokers.get(self._node.broker_id)
        return found is not None and self._node.options.zookeeper_connect != "" and (found.host, found.port) == self._node.address

    def _registered(self, result: StoreResult, told: "Told") -> None:
        self._registering = False
        node = self._node
        if result.error is None:
            self.epoch = result.states[-1].created_zxid
            if self.clean_since < 0:
                # From now on only another crash can lose records.
                self.clean_since = self.epoch
            node.replica_health.registered(told)
            node.controller.reachability.registered()
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
            # The conflicting registration was deleted, or is ours to replace.
            self.register()
        elif node.options.zookeeper_connect and self._patience_ms is None:
            # A session lives this long after its last heartbeat, and longer while the ensemble elects a leader.
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
