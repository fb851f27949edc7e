"""Large classic groups: responses to members are paced, so that other clients are not delayed."""

from groups import cluster_of_groups, coordinating, join, leave, sync

from ottla.broker.delayed import TICK_MS
from ottla.broker.groups.classic.responses import PORTION

LARGE = 2 * PORTION + 5


def test_a_large_generation_is_answered_in_portions_and_the_leader_first() -> None:
    cluster = cluster_of_groups()
    sent = [join(coordinating(cluster)) for _ in range(LARGE)]
    while all(each.waits for each in sent):
        cluster.pass_ms(TICK_MS)
    first = [each.answer for each in sent if each.answer is not None]
    assert len(first) == PORTION
    assert first[0].leader in {answer.member_id for answer in first}
    cluster.pass_ms(TICK_MS)
    assert sum(each.answer is not None for each in sent) == 2 * PORTION
    cluster.pass_ms(TICK_MS)
    assert [each.answer.error_code for each in sent] == [0] * LARGE


def test_members_of_a_large_group_are_given_their_assignments_in_portions() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker) for _ in range(LARGE)]
    while any(each.waits for each in sent):
        cluster.pass_ms(TICK_MS)
    followers = sorted((each.answer for each in sent), key=lambda answer: answer.member_id == answer.leader)
    leader = followers.pop()
    waiting = [sync(broker, answer) for answer in followers]
    waiting.append(sync(broker, leader, given={answer.member_id: b"part" for answer in (*followers, leader)}))
    assert sum(each.answer is not None for each in waiting) == PORTION
    for _ in range(2):
        cluster.pass_ms(TICK_MS)
    assert [each.answer.assignment for each in waiting] == [b"part"] * LARGE


def test_member_that_waits_for_its_portion_is_overtaken_by_the_next_rebalance() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    sent = [join(broker) for _ in range(LARGE)]
    while all(each.waits for each in sent):
        cluster.pass_ms(TICK_MS)
    last = sent[-1]
    assert last.waits
    gone = next(each.answer for each in sent if each.answer is not None)
    assert leave(broker, gone.member_id) == [0, 0]
    cluster.pass_ms(2 * TICK_MS)
    assert (last.answer.error_code, last.answer.generation_id) == (0, 1)
    assert sync(broker, last.answer).answer.error_code == 27, "the group meets again"


def test_members_of_a_small_group_are_answered_at_once() -> None:
    cluster = cluster_of_groups()
    sent = [join(coordinating(cluster)) for _ in range(PORTION)]
    while all(each.waits for each in sent):
        cluster.pass_ms(TICK_MS)
    assert all(each.answer is not None for each in sent)
