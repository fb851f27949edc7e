"""UpdateFeatures: on the controller; raises or lowers finalized levels of features.

Behaviour: all changes are made together, or none. A level must be supported by the controller and by every registered broker, or it is
INVALID_UPDATE_VERSION; so is a lower level without a downgrade type, an unknown type, and a downgrade of a feature that formats on disk
depend on (``metadata/features.py``). A request without features succeeds. ``validate_only`` checks and changes nothing. The finalized
levels are in the store's ``/feature`` node; every broker applies them when it sees the change.

The last entry of a feature counts. Versions: 0 has a flag instead of types; 0 and 1 return a result per entry if the update succeeds.

Differences from Kafka: both types of downgrade are equal, because no downgrade here loses metadata; so ``metadata.version`` can always be
lowered, and Kafka refuses that across releases that changed the metadata. The flag of version 0 allows a downgrade; Kafka ignores it.
``kraft.version``, ``share.version`` and ``streams.version`` are unknown, because there is no quorum and no such groups; so
``kafka-features.sh upgrade --release-version`` fails, and its options ``--feature`` work.
Source: KIP-584, KIP-778, KIP-1022; Kafka's FeatureControlManager.
"""

from ottla.base.ports import Op
from ottla.broker.apis.store_writes import Writes
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.metadata import features
from ottla.broker.node import Node
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
#: First version with types of downgrade.
TYPES_SINCE = 1


def refuse(call: RequestArrived[UpdateFeaturesRequest], error: KafkaError) -> UpdateFeaturesResponse:
    response = UpdateFeaturesResponse()
    _fail(response, error)
    return response


@handles(UpdateFeaturesRequest, (0, 2), refuse=refuse, at_controller=True)
def update_features(node: Node, call: RequestArrived[UpdateFeaturesRequest]) -> UpdateFeaturesResponse | Deferred:
    request = call.body

    def plan() -> list[Op]:
        levels = _updated(node, call)
        image = node.context.image
        data = layout.encode_feature(layout.Features(levels={name: level for name, level in levels.items() if level > 0}))
        version = image.versions.get(layout.FEATURE)
        if version is None:
            return [Op("create", layout.FEATURE, data)]
        return [Op("set", layout.FEATURE, data, version=version)] if levels != image.levels else []

    ops = plan() if request.feature_updates else []
    response = UpdateFeaturesResponse(results=[UpdatableFeatureResult(feature=update.feature) for update in request.feature_updates])
    if request.validate_only or not ops:
        return response

    def done(error: KafkaError | None) -> None:
        if error is not None:
            _fail(response, error)

    writes = Writes(node, call)
    writes.add(ops, done, again=plan)
    return writes.answer_when_done(response, request.timeout_ms)


def _updated(node: Node, call: RequestArrived[UpdateFeaturesRequest]) -> dict[str, int]:
    """The finalized levels after the request. Raises: InvalidUpdateVersion."""
    image, updates = node.context.image, {update.feature: update for update in call.body.feature_updates}.values()
    levels = image.levels
    brokers = [(int(found.broker), features.registered_levels(found.features)) for found in image.brokers.values()]
    for update in updates:
        try:
            downgrade = _is_downgrade(update, call.api_version)
            features.check_update(update.feature, update.max_version_level, now=levels, downgrade=downgrade, brokers=brokers)
        except errors.InvalidUpdateVersion as error:
            raise errors.InvalidUpdateVersion(f"no feature was updated, because of this one: {error}") from None
    return levels | {update.feature: update.max_version_level for update in updates}


def _is_downgrade(update: FeatureUpdateKey, version: int) -> bool:
    """Raises: InvalidUpdateVersion."""
    if version < TYPES_SINCE:
        return update.allow_downgrade
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        level, kind = update.max_version_level, update.upgrade_type
        raise errors.InvalidUpdateVersion(f"invalid update version {level} for feature {update.feature}: there is no upgrade type {kind}")
    return update.upgrade_type != UPGRADE


def _fail(response: UpdateFeaturesResponse, error: KafkaError) -> None:
    response.error_code, response.error_message, response.results = error.code, str(error), []
