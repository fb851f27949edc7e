"""AlterUserScramCredentials: sets and deletes users' SCRAM credentials; on the controller.

Behaviour: the client salts the password, and the broker derives the two keys that it stores in ``/config/users/NAME``. Other settings of
the user, such as quotas, stay. All alterations of one user succeed or fail together:

==============================================  ================================
empty name, iterations not 4,096 to 16,384      UNACCEPTABLE_CREDENTIAL
a salted password of another size               UNACCEPTABLE_CREDENTIAL
an unknown mechanism                            UNSUPPORTED_SASL_MECHANISM
a mechanism of a user that is named twice       DUPLICATE_RESOURCE
a deletion of a credential that does not exist  RESOURCE_NOT_FOUND
==============================================  ================================

Differences from Kafka: KRaft refuses two mechanisms of one user in one request, which the documentation of kafka-configs.sh shows; they
are accepted here, as in Kafka with ZooKeeper. Credentials count for ottla.config.max.bytes: a request above it is POLICY_VIOLATION.
Source: KIP-554; Kafka's ScramControlManager and ZkAdminManager.
"""

from collections import Counter
from functools import partial

from ottla.base.ports import Op
from ottla.base.scram import BY_CODE, ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential
from ottla.broker.apis.store_writes import Writes, note
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.metadata.image import entry_bytes
from ottla.broker.node import Node
from ottla.store import layout, layout_quotas
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

#: Timeout of the store: these requests have none.
ANSWER_MS = 30_000
#: Largest name of a user in bytes: it is part of a path in the store.
NAME_BYTES_MAX = 1_000
SALT_BYTES_MAX = 1_000

Alteration = ScramCredentialDeletion | ScramCredentialUpsertion


def refuse(call: RequestArrived[AlterUserScramCredentialsRequest], error: KafkaError) -> AlterUserScramCredentialsResponse:
    response = AlterUserScramCredentialsResponse()
    for user in _by_user(call.body):
        response.results.append(AlterUserScramCredentialsResult(user=user))
        note(response.results[-1], error)
    return response


@handles(AlterUserScramCredentialsRequest, (0, 0), refuse=refuse, at_controller=True)
def alter_user_scram_credentials(
    node: Node, call: RequestArrived[AlterUserScramCredentialsRequest]
) -> AlterUserScramCredentialsResponse | Deferred:
    response = AlterUserScramCredentialsResponse()
    writes = Writes(node, call)
    room = node.context.options.config_max_bytes - node.context.image.configs_bytes
    for user, alterations in _by_user(call.body).items():
        result = AlterUserScramCredentialsResult(user=user, error_message=None)
        response.results.append(result)
        plan, done = partial(_plan, node, user, alterations), partial(note, result)
        try:
            ops = plan()
            growth = sum(entry_bytes(op.path, op.data) for op in ops if op.kind == "create")
            if growth > max(room, 0):
                limit = node.context.options.config_max_bytes
                raise errors.PolicyViolation(f"all settings in the store would exceed ottla.config.max.bytes, {limit}; delete some")
            room -= growth
        except KafkaError as error:
            done(error)
            continue
        writes.add(ops, done, again=plan)
    return writes.answer_when_done(response, ANSWER_MS)


def _by_user(request: AlterUserScramCredentialsRequest) -> dict[str, list[Alteration]]:
    found: dict[str, list[Alteration]] = {}
    alterations: list[Alteration] = [*request.deletions, *request.upsertions]
    for alteration in alterations:
        found.setdefault(alteration.name, []).append(alteration)
    return found


def _plan(node: Node, user: str, alterations: list[Alteration]) -> list[Op]:
    """Operations for all alterations of a user. Raises: KafkaError."""
    _check_name(user)
    if max(Counter(alteration.mechanism for alteration in alterations).values()) > 1:
        raise errors.DuplicateResource("A user credential cannot be altered twice in the same request")
    image = node.context.image
    overrides = dict(image.overrides("users", user))
    for alteration in alterations:
        mechanism = BY_CODE.get(alteration.mechanism)
        if mechanism is None:
            raise errors.UnsupportedSaslMechanism("Unknown SCRAM mechanism")
        if isinstance(alteration, ScramCredentialDeletion):
            if overrides.pop(mechanism.mechanism, None) is None:
                raise errors.ResourceNotFound("Attempt to delete a user credential that does not exist")
        else:
            _check(alteration, mechanism.key_bytes)
            credential = ScramCredential.of_salted_password(
                mechanism, bytes(alteration.salted_password), bytes(alteration.salt), alteration.iterations
            )
            overrides[mechanism.mechanism] = credential.text
    path = layout.config("users", user)
    version = image.versions.get(path)
    if version is None:
        return [Op("create", path, layout.encode_config(overrides))]
    # Quotas of the user's client ids are below its node.
    stays = overrides or layout_quotas.quota_clients(path) in image.versions
    return [Op("set", path, layout.encode_config(overrides), version=version)] if stays else [Op("delete", path, version=version)]


def _check_name(user: str) -> None:
    if not user:
        raise errors.UnacceptableCredential("Username must not be empty")
    if user == layout.DEFAULT_ENTITY or len(user.encode()) > NAME_BYTES_MAX:
        raise errors.UnacceptableCredential(f"the name is reserved, or has more than {NAME_BYTES_MAX} bytes")


def _check(upsertion: ScramCredentialUpsertion, key_bytes: int) -> None:
    if upsertion.iterations < ITERATIONS_MIN:
        raise errors.UnacceptableCredential("Too few iterations")
    if upsertion.iterations > ITERATIONS_MAX:
        raise errors.UnacceptableCredential("Too many iterations")
    if len(upsertion.salted_password) != key_bytes or not 0 < len(upsertion.salt) <= SALT_BYTES_MAX:
        raise errors.UnacceptableCredential(f"the salted password must have {key_bytes} bytes, and the salt 1 to {SALT_BYTES_MAX}")
