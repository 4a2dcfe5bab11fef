from bench.step.kinds import GREEDY, Guests
from protocol.messages_gateway import Assign, CancelRequest


def test_guests_come_and_go_once_for_each_launch() -> None:
    told: list[Assign | CancelRequest] = []
    guests = Guests(told.append, GREEDY, 9)
    for launches in (5, 5, 6, 6, 7, 8, 9, 9, 10):
        guests.change(launches)
    came = [message.request_id for message in told if isinstance(message, Assign)]
    went = [message.request_id for message in told if isinstance(message, CancelRequest)]
    assert (came, went) == ([f"guest{number}" for number in range(1, 7)], ["guest1", "guest2"])
    assert len(guests) == 4
