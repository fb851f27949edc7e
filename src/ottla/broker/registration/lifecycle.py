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

Apache Kafka's brokers use the same nodes, but another protocol between brokers, and a controller of theirs does not know ours. So a broker
does not join a path where they are registered, and warns when one registers later. It also warns of a broker of Ottla 0.1 that registers
after ottla.version was raised: 0.1 does not look at the level. Such a broker counts as one in controlled shutdown.
"""

from ottla.base.ids import BrokerId
from ottla.base.log_levels import SESSION
from ottla.base.ports import Op, SessionState, StoreResult
from ottla.broker import effects
from ottla.broker.context import BrokerContext
from ottla.broker.controller.controller import Controller
from ottla.broker.metadata.image import Image
from ottla.broker.registration.registration import Registration
from ottla.broker.registration.replica_health import ReplicaHealth, Told
from ottla.broker.replica.fetchers import Fetchers
from ottla.broker.replica.partitions import Partitions
from ottla.store import layout

#: Named in the refusal; the others are similar.
FOREIGN_SHOWN = 3


def refusal_beside_kafka(image: Image, zookeeper_connect: str) -> str:
    """Why a broker does not start where brokers of Apache Kafka are registered; empty where there are none."""
    foreign = [found for found in image.brokers.values() if found.foreign]
    if not foreign:
        return ""
    there = ", ".join(f"{found.broker} at {found.host}:{found.port}" for found in foreign[:FOREIGN_SHOWN])
    return (
        f"brokers of Apache Kafka are registered at zookeeper.connect {zookeeper_connect}: {there}. Ottla uses the same nodes and cannot "
        "be in one cluster with them. Give this cluster a path of its own, such as HOST:PORT/ottla, and copy the topics. Or stop all "
        "brokers of Apache Kafka, and start this one when their sessions have ended"
    )


class BrokerLifecycle:
    """State of the registration."""

    def __init__(
        self,
        context: BrokerContext,
        registration: Registration,
        replica_health: ReplicaHealth,
        partitions: Partitions,
        fetchers: Fetchers,
        controller: Controller,
    ) -> None:
        self._context = context
        self._registration = registration
        self._replica_health = replica_health
        self._partitions = partitions
        self._fetchers = fetchers
        self._controller = controller
        self._registering = False
        #: When another registration with this id counts as a living broker; None without one.
        self._patience_ms: int | None = None
        #: The store did not answer; the next tick retries.
        self._retry = False
        #: The registration was deleted although the session lives: the present registration belongs to another process.
        self._ousted = False
        #: Brokers of Apache Kafka and of Ottla 0.1 that were reported.
        self._reported: set[int] = set()

    def warn_of_others(self, broker: BrokerId) -> None:
        """A registration changed while this broker runs: warns once of each broker that should not be in this cluster."""
        found = self._context.image.brokers.get(broker)
        if found is None or not (found.foreign or found.outdated):
            self._reported.discard(broker)
        elif broker not in self._reported:
            self._reported.add(broker)
            where = f"broker {broker} at {found.host}:{found.port}"
            self._context.log.warn(
                SESSION,
                f"{where} is of Apache Kafka and registered in this cluster; both write the same nodes by different rules, and records "
                "can be lost: stop it, or give it another path in zookeeper.connect"
                if found.foreign
                else f"{where} does not support ottla.version {self._context.image.levels[layout.OTTLA_VERSION]}, which this cluster has "
                "finalized: it joins no ISR, and leads only partitions without another candidate; stop it and start a later version",
            )

    def _note(self, what: str, **fields: int) -> None:
        """Adds a change of this broker to the timeline."""
        self._context.timeline.note("controller", f"broker {self._context.broker_id}", what, **fields)

    def register(self) -> None:
        """Registers the broker."""
        context = self._context
        if self._registering or self._context.epoch is not None or context.stopping:
            return
        self._registering = True
        path = layout.broker(context.broker_id)
        created = Op("create", path, layout.encode_broker(self._registration.content()), ephemeral=True)
        ops = (Op("delete", path), created) if self._own_remains() and not self._ousted else (created,)
        told = self._replica_health.registering()
        context.submit(ops, lambda result: self._registered(result, told))

    def session_changed(self, state: SessionState) -> None:
        """The session state changed."""
        if state == "connected":
            self._connected()
        elif self._context.connected or state == "lost":
            self._context.connected = False
            if state == "lost":
                self._context.epoch, self._context.session_lost = None, True
            self._context.log.warn(SESSION, f"broker {self._context.broker_id}: the session with the store is {state}")
            self._note(f"session {state}")
            self._controller.step_down()
            self._partitions.step_down()

    def broker_changed(self) -> None:
        """This broker's registration changed in the store."""
        context = self._context
        found = context.image.brokers.get(context.broker_id)
        if self._context.epoch is None:
            if found is None and self._patience_ms is not None:
                self.register()
        elif found is None:
            # Other brokers now consider this one as gone.
            self._context.epoch = None
            if self._context.connected:
                self._ousted = True
                self.register()

    def tick(self) -> None:
        """Retries what the store did not answer."""
        context = self._context
        if self._retry and self._context.connected:
            self._retry = False
            self.register()
        if self._patience_ms is not None and context.now_ms >= self._patience_ms and self._context.epoch is None:
            self._refuse()

    def _connected(self) -> None:
        context = self._context
        if self._context.connected:
            return
        self._context.connected = True
        context.log.warn(SESSION, f"broker {context.broker_id}: the session with the store is back")
        self._note("session connected")
        found = context.image.brokers.get(context.broker_id)
        if self._context.epoch is not None and found is not None and found.epoch == self._context.epoch:
            self._partitions.resume()
            self._controller.start()
        else:
            self._context.epoch, self._context.session_lost = None, True
            self.register()

    def _own_remains(self) -> bool:
        """Whether the registration belongs to an earlier process of this broker."""
        found = self._context.image.brokers.get(self._context.broker_id)
        own = {endpoint.listener: endpoint.address for endpoint in self._context.endpoints}
        return found is not None and self._context.options.zookeeper_connect != "" and found.addresses == own

    def _registered(self, result: StoreResult, told: "Told") -> None:
        self._registering = False
        context = self._context
        if result.error is None:
            self._context.epoch = result.states[-1].created_zxid
            addresses = [endpoint.text for endpoint in context.endpoints]
            context.log.info(SESSION, f"registered under broker epoch {context.epoch}", epoch=context.epoch, addresses=addresses)
            self._note("registered", broker_epoch=result.states[-1].created_zxid)
            if self._registration.clean_since < 0:
                # From now on only another crash can lose records.
                self._registration.clean_since = self._context.epoch
            self._replica_health.registered(told)
            self._controller.reachability.registered()
            self._patience_ms = None
            self._ousted = False
            self._partitions.resume()
            self._fetchers.stir_all()
            self._controller.start()
        elif result.error in ("unavailable", "session"):
            self._retry = True
        elif self._ousted:
            self._refuse()
        elif context.broker_id not in context.image.brokers or self._own_remains():
            # The conflicting registration was deleted, or is ours to replace.
            self.register()
        elif context.options.zookeeper_connect and self._patience_ms is None:
            # A session lives this long after its last heartbeat, and longer while the ensemble elects a leader.
            self._patience_ms = context.now_ms + context.options.zookeeper_session_timeout_ms * 3 // 2
            context.log.warn(
                SESSION, f"broker {context.broker_id} is already registered; waiting, in case that is an earlier process of this broker"
            )
        elif self._patience_ms is None:
            self._refuse()

    def _refuse(self) -> None:
        context = self._context
        found = context.image.brokers.get(context.broker_id)
        where = f", at {found.host}:{found.port}" if found is not None else ""
        reason = f"broker id {context.broker_id} is already registered in this cluster{where}; give this one another"
        context.effects.append(effects.Halt(reason=reason))
