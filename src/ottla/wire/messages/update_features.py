"""UpdateFeatures, key 57: changes finalized levels of features.

| version | change |
|-|-|
| 1 | kinds of downgrade instead of a flag; requests that only check (KIP-778) |
| 2 | one error of the whole request instead of one per feature (KIP-1022) |

Source: KIP-584.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int8, Int16, Int32, Since, Struct, Until, message


class FeatureUpdateKey(Struct):
    """A feature and its new level. ``upgrade_type``: 1 upgrade, 2 downgrade without loss, 3 downgrade with loss."""

    feature: str = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[bool, Until(0), Ignorable] = False
    upgrade_type: Annotated[Int8, Since(1), Ignorable] = 1


@message(key=57, since=0, until=2, flexible_since=0)
class UpdateFeaturesRequest(Struct):
    """All changes are made together, or none."""

    timeout_ms: Int32 = 60_000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Annotated[bool, Since(1)] = False


class UpdatableFeatureResult(Struct):
    """The outcome for one feature."""

    feature: str = ""
    error_code: Int16 = 0
    error_message: str | None = None


@message(key=57, since=0, until=2, flexible_since=0)
class UpdateFeaturesResponse(Struct):
    """The outcome; from version 2 on without one of each feature."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    results: Annotated[list[UpdatableFeatureResult], Until(1), Ignorable] = []
