"""The ISR from the view of a leader: which followers are in sync, and which ISR it requests."""

from ottla.broker.replica.isr_state import IsrState
from ottla.store.layout import PartitionState

LAG_MS = 1_000


def in_sync(*isr: int) -> IsrState:
    state = PartitionState(leader=1, leader_epoch=0, isr=isr, controller_epoch=1)  # type: ignore[arg-type]
    return IsrState(1, (1, 2, 3), state, 5, 0)


def wanted(state: IsrState, *, end_offset: int, joins_at: int) -> tuple[int, ...] | None:
    return state.wanted(100, end_offset=end_offset, joins_at=joins_at, lag_max_ms=LAG_MS, sound=lambda broker, epoch: True)


def test_a_replica_is_requested_for_the_isr_again_only_with_all_committed_records() -> None:
    """A leader that goes on in its epoch after its session was suspended counts with what it had asked for before; that broker may have
    lost its disk since."""
    state = in_sync(1, 3)
    state.propose((1, 2, 3))
    state.fetched(3, offset=210, end_offset=210, broker_epoch=3, now_ms=50)
    state.fetched(2, offset=0, end_offset=210, broker_epoch=14, now_ms=50)
    assert wanted(state, end_offset=210, joins_at=210) == (1, 3)
    assert state.committed(210, min_insync=2) == 0, "it counts as long as the outcome of the request is unknown"
    state.fetched(2, offset=210, end_offset=210, broker_epoch=14, now_ms=60)
    assert wanted(state, end_offset=210, joins_at=210) == (1, 2, 3)


def test_a_member_of_the_isr_may_be_behind_for_a_while() -> None:
    state = in_sync(1, 2, 3)
    state.fetched(3, offset=210, end_offset=210, broker_epoch=3, now_ms=50)
    state.fetched(2, offset=200, end_offset=210, broker_epoch=4, now_ms=50)
    assert wanted(state, end_offset=210, joins_at=205) is None
