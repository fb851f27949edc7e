"""The scenario `rotate`: all certificates and the inter-broker password of a secured cluster change while clients work.

A change of the password is three rolling restarts, since PLAIN has one password for each user::

    accept    each broker also accepts the next user
    log in    each broker logs in as the next user
    forget    no broker accepts the previous user any more

Between the changes a leader is killed: every client and broker must connect anew, with what is valid then.
"""

from __future__ import annotations

from functools import partial

import ottla
from chaos.cluster import Broker, ConditionTimeout, until
from chaos.context import PARTITIONS, ScenarioContext
from chaos.security import BROKER_USERS, BrokerSecurity, new_password
from ottla.errors import SaslAuthenticationFailed

#: A broker looks for changed files every 10 s.
EXCHANGE_S = 40.0
KEY_STORE = "ssl.keystore.location"
#: A broker logs this line when another one refuses it.
REFUSED = "this broker is not authenticated by another one"


def rotate(context: ScenarioContext, rounds: int) -> None:
    """Change certificates by file, certificates by settings, and the password between brokers, in each round."""
    for number in range(rounds):
        for change in (_certificates_by_file, _certificates_by_settings, _password):
            change(context)
            _kill_a_leader(context, number)
    for broker in context.cluster.brokers.values():
        refused = broker.output.read_text(errors="replace").count(REFUSED)
        if refused:
            context.outcome.problems.append(f"broker {broker.number} was refused {refused} times by another broker")


def _secured(context: ScenarioContext) -> list[tuple[Broker, BrokerSecurity]]:
    found = [(broker, broker.security) for broker in context.cluster.brokers.values()]
    return [(broker, security) for broker, security in found if security is not None]


def _kill_a_leader(context: ScenarioContext, number: int) -> None:
    partition = number % PARTITIONS
    broker = context.leader(partition)
    context.failover(partition, broker.kill, f"kill -9 of broker {broker.number}, which led {partition}", leaves=broker)
    context.restart(broker)


def _certificates_by_file(context: ScenarioContext) -> None:
    for _, security in _secured(context):
        security.replace_file()
    # Each broker looks in its own time, so they use old and new certificates side by side for a while.
    for broker, security in _secured(context):
        _await_exchange(context, broker, security)


def _certificates_by_settings(context: ScenarioContext) -> None:
    for broker, security in _secured(context):
        security.certificate = security.new_file()
        changes = {f"listener.name.{listener}.{KEY_STORE}": str(security.certificate) for listener in ("client", "broker")}
        try:
            with context.cluster.admin() as admin:
                admin.incremental_alter_config(ottla.Resource(ottla.ResourceType.BROKER, str(broker.number)), changes)
        except ottla.KafkaError as error:
            raise ConditionTimeout(f"the certificate of broker {broker.number} is not changed: {error}") from error
        _await_exchange(context, broker, security)


def _await_exchange(context: ScenarioContext, broker: Broker, security: BrokerSecurity) -> None:
    what = f"broker {broker.number} uses its new certificate"
    until(partial(security.uses, security.certificate), what, timeout_s=EXCHANGE_S)
    context.await_writes()
    context.outcome.faults += 1
    context.log(f"{context.outcome.scenario} {context.outcome.faults}: {what}")


def _password(context: ScenarioContext) -> None:
    secured = _secured(context)
    old = secured[0][1].user
    new = next(user for user in BROKER_USERS if user != old)
    password, old_password = new_password(), secured[0][1].password
    for broker, security in secured:
        security.accepted[new] = password
        _restart(context, broker, f"it also accepts {new}")
    for broker, security in secured:
        security.user = new
        _restart(context, broker, f"it logs in as {new}")
    for broker, security in secured:
        del security.accepted[old]
        _restart(context, broker, f"it does not accept {old}")
    for broker, security in secured:
        _check_login(context, broker, security, new, password, valid=True)
        _check_login(context, broker, security, old, old_password, valid=False)


def _restart(context: ScenarioContext, broker: Broker, why: str) -> None:
    led = context.led_by(broker)
    context.failover(led[0] if led else 0, broker.stop, f"SIGTERM of broker {broker.number}; after its start {why}")
    context.restart(broker)


def _check_login(context: ScenarioContext, broker: Broker, security: BrokerSecurity, user: str, password: str, *, valid: bool) -> None:
    assert context.cluster.security is not None, "the cluster is secured"
    settings = context.cluster.security.as_broker(security.brokers, user, password)
    try:
        with ottla.Admin(**settings) as admin:
            admin.list_topics(timeout_ms=10_000)
        taken = True
    except SaslAuthenticationFailed:
        taken = False
    if taken != valid:
        verb = "accepts" if taken else "refuses"
        context.outcome.problems.append(f"broker {broker.number} {verb} {user} after the change of the password")
