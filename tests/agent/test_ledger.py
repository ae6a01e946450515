"""The ledger: shards are passed over equally often, whoever comes and goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_agent.ledger import ShardLedger


def test_workers_hold_different_shards() -> None:
    ledger = ShardLedger(4)
    assert [ledger.take(name) for name in "abcd"] == [0, 1, 2, 3]


def test_a_shard_left_behind_is_given_out_first() -> None:
    ledger = ShardLedger(4)
    first = ledger.take("a")
    ledger.take("b")
    ledger.release("a")
    assert ledger.take("c") == first
    assert ledger.passes == [0, 0, 0, 0]


def test_a_finished_shard_is_given_out_last() -> None:
    ledger = ShardLedger(3)
    order = []
    for _ in range(6):
        order.append(ledger.take("a"))
        ledger.finish("a")
    assert order == [0, 1, 2, 0, 1, 2]
    assert ledger.passes == [2, 2, 2]


def test_more_workers_than_shards_share_them_evenly() -> None:
    ledger = ShardLedger(2)
    for name in "abcd":
        ledger.take(name)
    assert [len(ledger.holder_of(shard)) for shard in (0, 1)] == [2, 2]


def test_a_shard_that_another_still_holds_is_not_left_behind() -> None:
    ledger = ShardLedger(1)
    ledger.take("a")
    ledger.take("b")
    ledger.release("a")
    assert ledger.holder_of(0) == ("b",)
    ledger.finish("b")
    assert ledger.passes == [1]


def test_counts_come_back_from_a_checkpoint_and_are_checked() -> None:
    assert ShardLedger(3, [2, 1, 2]).take("a") == 1
    with pytest.raises(ValueError, match="3 counts"):
        ShardLedger(3, [1, 2])
    with pytest.raises(ValueError, match="0 or more"):
        ShardLedger(2, [1, -1])


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["finish", "release"])), max_size=60),
)
def test_whoever_comes_and_goes_every_shard_gets_its_turn(total: int, events: list[tuple[str, str]]) -> None:
    ledger = ShardLedger(total)
    finished = 0
    for worker, event in events:
        if ledger.held_by(worker) is None:
            shard = ledger.take(worker)
            assert worker in ledger.holder_of(shard)
        elif event == "finish":
            ledger.finish(worker)
            finished += 1
        else:
            ledger.release(worker)
    assert sum(ledger.passes) == finished
    # With one worker at a time no shard would be two passes ahead; each further holder can add one.
    assert max(ledger.passes) - min(ledger.passes) <= 1 + 5
