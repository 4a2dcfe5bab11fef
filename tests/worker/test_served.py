"""What every role does with its requests: each ends once, and its role hears of it unless it has finished."""

import random
from collections import Counter

import pytest

from protocol.errors import BadRequest, BatonError, LaunchFailed, PrefillQueueFull, QueueFull
from protocol.messages_gateway import Assign, FinishReason
from tests.scheduler.building import greedy
from worker.policies import Policies
from worker.requests import Assigned
from worker.served import Served

FAULT = LaunchFailed("broken kernel")


class Noting:
    """A role that notes what it is asked for. `room`: how many of those that wait it can admit."""

    def __init__(self, num_waiting: int = 0, room: int = 0) -> None:
        self.num_waiting, self.room = num_waiting, room
        self.num_asked = 0
        self.heard: list[tuple[Assigned, BatonError | None]] = []

    def admit(self) -> None:
        self.num_asked += 1
        self.num_waiting -= min(self.room, self.num_waiting)

    def ended(self, request: Assigned, error: BatonError | None) -> None:
        self.heard.append((request, error))


def make(role: Noting, most: int = 2) -> Served[Assigned]:
    return Served(role, Policies(max_queued_requests=most))


def assign(name: str, n: int = 1, **more: bool) -> Assign:
    return Assign(name, 0, (1, 2, 3), greedy(9), n, None, **more)  # type: ignore[arg-type]


def taken(served: Served[Assigned], name: str, n: int = 1) -> Assigned:
    request = Assigned(assign(name, n))
    served.take(request)
    return request


def check(served: Served[Assigned], alive: set[Assigned]) -> None:
    assert set(served.by_key.values()) == alive
    assert served.of == {req: request for request in alive for req in request.reqs}


@pytest.mark.parametrize("seed", range(20))
def test_each_request_ends_once_in_any_order(seed: int) -> None:
    rng, role = random.Random(seed), Noting()
    served, alive = make(role), set[Assigned]()
    ends: Counter[str] = Counter()
    for index in range(200):
        if not alive or rng.random() < 0.4:
            alive.add(taken(served, f"r{index}", rng.randint(1, 3)))
            continue
        request = rng.choice(sorted(alive, key=lambda request: request.key))
        choice, before = rng.choice([-1, *range(len(request.reqs))]), len(role.heard)
        going_on = [req for req in request.reqs if req.finish is None]
        match rng.choice(("cancel", "cancel", "fail", "fail those", "finish", "drop")):
            case "cancel":
                cut = [req for req in going_on if choice in (-1, req.choice)]
                others = len(cut) < len(going_on)
                assert served.cancel(request.key, choice) == (cut if others else [])
                assert role.heard[before:] == ([] if others else [(request, None)])
                assert all(req.finish is FinishReason.CANCELLED for req in cut)
                if others:
                    continue
            case "fail":
                served.fail(request, FAULT)
                assert role.heard[before:] == [(request, FAULT)]
            case "fail those":
                served.fail_those([*request.reqs, request.reqs[0]], FAULT)
                assert role.heard[before:] == [(request, FAULT)]
            case "finish":
                for req in going_on:
                    req.finish = FinishReason.LENGTH
                assert served.finish(request.reqs[-1]) is request
                assert role.heard[before:] == []
                ends["finish"] += 1
            case "drop":
                served.drop(request)
                assert role.heard[before:] == [(request, None)]
        alive.remove(request)
        ends["all"] += 1
        assert request.has_ended
        check(served, alive)
        assert served.cancel(request.key) == [] and len(role.heard) == ends["all"] - ends["finish"], "it is unknown"
    before = len(role.heard)
    served.drop_all()
    check(served, set())
    assert {request for request, error in role.heard[before:] if error is None} == alive
    assert len(role.heard[before:]) == len(alive) and ends["finish"] > 0


@pytest.mark.parametrize("full", [QueueFull, PrefillQueueFull])
def test_when_too_many_wait_the_role_admits_first_and_then_a_newcomer_is_refused(full: type[QueueFull]) -> None:
    for num_waiting, room, is_asked, is_refused in (
        (1, 0, False, False),
        (2, 0, True, True),
        (2, 1, True, False),
        (5, 3, True, True),
        (5, 4, True, False),
    ):
        role = Noting(num_waiting, room)
        error = make(role).refusal(assign("r"), None, full)
        assert (role.num_asked > 0, error is not None) == (is_asked, is_refused)
        assert error is None or type(error) is full
        assert make(Noting(num_waiting)).refusal(assign("r", resumes=True), None) is None


def test_what_can_never_be_served_is_refused_without_a_look_at_the_line() -> None:
    role = Noting(num_waiting=9)
    error = make(role).refusal(assign("r"), "prompt: got 0 tokens, expected at least 1")
    assert isinstance(error, BadRequest) and error.message.startswith("prompt: got 0") and role.num_asked == 0
