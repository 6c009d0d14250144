"""Which item of a batch is next, how many run at once, and which go back."""

import pytest

import outlast
from outlast.batch import queue, work


def test_suspects_run_alone_after_all_others_and_held_ones_are_asked_for_again():
    q = queue.Queue(iter([0, 1, 2]), queue.Width(9))
    assert [q.take(0.0) for _ in range(3)] == [queue.Take(0), queue.Take(1), queue.Take(2)]
    q.ended(), q.suspect(0), q.ended(), q.held(1, 0.0)
    assert q.take(0.0) == queue.Wait(None), "2 runs yet"
    q.ended()
    assert q.take(0.0) == queue.Take(0, alone=True)
    assert q.take(9.0) == queue.Wait(None), "nothing beside a suspect"
    q.ended()
    assert q.take(0.1) == queue.Wait(pytest.approx(queue.ASK_AGAIN_S - 0.1))
    assert q.take(9.0) == queue.Take(1)
    q.ended()
    assert q.take(9.0) is None


@pytest.mark.parametrize(
    "error, refused, answers, halted, back",
    [
        (None, None, 0, False, False),
        (None, None, 3, True, False),
        (None, None, 0, True, True),
        (None, "dollar_budget_exceeded", 3, True, True),
        (ValueError(), None, 3, True, True),
        (ValueError(), None, 3, False, False),
        (outlast.BudgetExceeded("x"), None, 0, False, True),
        (outlast.LeaseLost("x"), None, 0, False, True),
    ],
)
def test_what_a_limit_refused_goes_back_whatever_its_function_did(error, refused, answers, halted, back):
    assert work.goes_back(error, refused, answers, halted) == back


def test_a_crowded_provider_gets_half_as_many_and_more_again_as_items_go_well():
    at = queue.Width(4)
    for _ in range(2):
        at.crowded(1.0, 2.0), at.went_well(2.0)
    assert at.now == 2, "half of a window's tries"
    at.crowded(1.9, 3.0), at.crowded(1.9, 3.0)
    assert at.now == 2, "they began before it was halved"
    for i in range(9):
        at.crowded(4.0 + i, 4.0 + i)
    assert at.now == 1, "never none"
    at.went_well(20.0)
    assert at.now == 2, "one more for each window"
    for _ in range(100):
        at.went_well(20.0)
    assert at.now == 4, "never more than was asked for"
    at.no_room(21.0, 22.0), at.no_room(21.0, 22.0)
    assert at.now == 2, "room in a budget is no matter of shares"


def test_stray_refusals_leave_a_batch_as_wide_as_it_was():
    at = queue.Width(16)
    for i in range(1000):
        at.crowded(i, i) if i % 10 == 0 else at.went_well(i)
    assert at.now == 16


def test_no_item_is_taken_beyond_the_width():
    at = queue.Width(3)
    q = queue.Queue(iter(range(9)), at)
    assert [q.take(0.0) for _ in range(4)] == [queue.Take(0), queue.Take(1), queue.Take(2), queue.Wait(None)]
    for _ in range(3):
        at.crowded(0.0, 1.0)
    assert at.now == 1
    q.ended(), q.ended()
    assert q.take(1.0) == queue.Wait(None), "the one that runs is all that may"
    q.ended()
    assert q.take(1.0) == queue.Take(3)


class Refused(Exception):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status_code = status


@pytest.mark.parametrize("status, wanted", [(429, 4), (503, 4), (529, 4), (500, 8)])
def test_refusals_of_a_crowded_provider_make_a_batch_narrower(rt, status, wanted):
    def fn(i):
        raise Refused(status)

    out = outlast.map(range(8), fn, job="j", key=str, store=rt, concurrency=8).wait()
    assert out.stats.failed == 8 and out._core.width.now == wanted
