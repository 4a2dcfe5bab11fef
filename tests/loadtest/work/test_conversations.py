"""Random conversations: sharing, turns, clients that leave, clients that think."""

from itertools import islice

from loadtest.work.conversations import RandomWork, with_cancels, with_think_time
from loadtest.work.lengths import Lengths

FOUR, EIGHT = Lengths("fixed", 4), Lengths("fixed", 8)


def test_prefixes_are_shared_by_as_many_groups_as_asked() -> None:
    drawn = list(islice(RandomWork(FOUR, EIGHT, prefix_tokens=6, num_prefixes=2).conversations(1), 40))
    prompts = [conversation.turns[0].said for conversation in drawn]
    assert {len(prompt) for prompt in prompts} == {10}
    assert len({prompt[:6] for prompt in prompts}) == 2 and len({prompt[6:] for prompt in prompts}) == 40
    assert drawn == list(islice(RandomWork(FOUR, EIGHT, prefix_tokens=6, num_prefixes=2).conversations(1), 40))


def test_later_turns_say_only_what_is_new() -> None:
    work = RandomWork(FOUR, EIGHT, prefix_tokens=6, num_turns=Lengths("fixed", 3))
    [conversation] = islice(work.conversations(0), 1)
    assert [len(turn.said) for turn in conversation.turns] == [10, 4, 4]


def test_text_has_as_many_words() -> None:
    [conversation] = islice(RandomWork(FOUR, EIGHT, as_text=True).conversations(0), 1)
    said = conversation.turns[0].said
    assert isinstance(said, str) and len(said.split()) == 4


def test_a_share_of_clients_leaves_within_the_answer() -> None:
    work = RandomWork(FOUR, EIGHT).conversations(0)
    after = [conversation.turns[-1].cancel_after for conversation in islice(with_cancels(work, 0.25, 7), 400)]
    leaving = [tokens for tokens in after if tokens is not None]
    assert 70 < len(leaving) < 130 and set(leaving) == set(range(1, 8))


def test_clients_think_after_each_answer() -> None:
    work = RandomWork(FOUR, EIGHT, num_turns=Lengths("fixed", 3)).conversations(0)
    drawn = list(islice(with_think_time(work, 2.0, 7), 500))
    assert {conversation.turns[0].think_s for conversation in drawn} == {0.0}
    waits = [turn.think_s for conversation in drawn for turn in conversation.turns[1:]] + [
        conversation.pause_s for conversation in drawn
    ]
    assert min(waits) > 0 and 1.8 < sum(waits) / len(waits) < 2.2
