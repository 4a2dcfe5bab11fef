from bench.step.kinds import GREEDY, Guests, Kind
from protocol.messages_gateway import Assign, CancelRequest


def test_stops_may_not_be_drawn_to_the_end() -> None:
    params = Kind("stops", num_stops=900).params(70)
    assert (params.min_tokens, params.max_tokens, len(params.ending_ids)) == (70, 70, 900)
    assert GREEDY.params(70).min_tokens == 0 and not GREEDY.params(70).ending_ids


def test_guests_come_and_go_once_for_each_launch() -> None:
    told: list[Assign | CancelRequest] = []
    guests = Guests(told.append, GREEDY, 9)
    for launches in (5, 5, 6, 6, 7, 8, 9, 9, 10):
        guests.change(launches)
    came = [message.request_id for message in told if isinstance(message, Assign)]
    went = [message.request_id for message in told if isinstance(message, CancelRequest)]
    assert (came, went) == ([f"guest{number}" for number in range(1, 7)], ["guest1", "guest2"])
    assert len(guests) == 4
