"""Which choices are preempted when pages run short, as a planner decides with a launch in flight."""

import pytest

from model.paged_kv import PagedKv
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import ManualStream, decode, finish, greedy, make_pair, make_req, prompt_chunk


@pytest.mark.parametrize("is_ending", [True, False])
def test_nobody_is_preempted_for_a_page_that_a_choice_frees_with_its_last_output_in_flight(is_ending: bool) -> None:
    """Three pages of four tokens. The second choice is short of its next page; the first one ends, or goes on."""
    runner = FakeRunner(vocab_size=97, context_length=64)
    executor, planner = make_pair(ManualStream(), runner=runner, kv=PagedKv(runner.kv_layout(4), 4))
    first = make_req((5, 6, 7), greedy(2 if is_ending else 9), name="first")
    second, third = make_req((5, 6, 8), greedy(9), name="second"), make_req((9,), greedy(9), name="third")
    for req in (first, second, third):
        assert planner.admit([req], req.prompt_len, grows=True)
        planner.launch(prompt_chunk(req))
        planner.join([req])
        finish(planner, executor)
    assert planner.kv_manager.pages.num_free == 0

    assert planner.make_room() == []
    launched = decode(planner)
    assert launched.decodes == (first, second, third) and planner.in_flight
    assert (first.num_left == 0) is is_ending
    assert planner.make_room() == ([] if is_ending else [third, second]), "two are short unless the first one ends"
    if is_ending:
        assert decode(planner).decodes == (third,), "the second one sits out the launch, and the first one has left"
        assert first.holding is not None and first not in planner.roster.all
        assert planner.make_room() == [], "the launch with the last output of the first one is still in flight"
