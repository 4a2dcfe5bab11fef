"""One choice until its whole answer is written: nothing of its Steps is lost, whatever their number."""

import random

import pytest

from gateway.generation.call_prompts import EchoedTokens
from gateway.routing.prompt_scores import PromptPart
from gateway.serving.gathered import Gathered
from gateway.text.echo import Echo
from gateway.words.events import Finish, Reason, Step, TextDelta
from gateway.words.scored import ScoredToken
from protocol.logprobs import PromptLogprobsAsked, TokenLogprob, of_tokens
from protocol.messages_gateway import PromptLogprobs

IDS = (5, 6)


def scored(count: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(-float(place), 1, ((place, -0.5),)) for place in range(count))


@pytest.mark.parametrize("tells_all", [False, True])
def test_steps_are_gathered(tells_all: bool) -> None:
    rng = random.Random(2)
    for _ in range(50):
        found, ids, text, told, num_bytes = Gathered(tells_all), list[int](), "", list[ScoredToken](), 0
        for number in range(9):
            new = tuple(rng.randrange(99) for _ in range(rng.randrange(4)))
            scores = scored(len(new))
            shown = tuple(ScoredToken(token, len(text), each) for token, each in zip(new, scores, strict=True))[1:]
            events = (TextDelta("é" * rng.randrange(1, 3)),) if rng.randrange(3) else ()
            step = Step(events, new, Finish(Reason.STOP, 7) if number == 8 else None, shown, scores)
            num_bytes += found.take(step)
            text, ids = text + step.text, [*ids, *new]
            told += (
                [ScoredToken(*pair) for pair in zip(new, [0] * len(new), scores, strict=True)] if tells_all else shown
            )
        assert ("".join(found.text.pieces), found.text.num_chars, found.token_ids.tolist()) == (text, len(text), ids)
        assert (list(found.scored), found.finish, found.scored.num_bytes) == (told, Finish(Reason.STOP, 7), num_bytes)
        assert found.num_bytes >= len(text.encode()) + 4 * len(ids)


def test_an_echo_is_kept_as_it_is() -> None:
    part = PromptPart(PromptLogprobsAsked(1), IDS)
    part.accept(PromptLogprobs("r", 0, 1, of_tokens(scored(1))))
    echoed, found = EchoedTokens(part, Echo("ab", (0, 1), 1), is_shared=True), Gathered()
    assert found.take(Step((TextDelta("ab"),), shown=echoed)) == 0
    shown = (ScoredToken(7, 2, scored(1)[0]),)
    found.take(Step((TextDelta("c"),), (7,), Finish(Reason.LENGTH), shown, scored(1)))
    assert found.echoed is echoed and [each.token_id for each in found.scored] == [7]
    assert found.text.pieces == ["ab", "c"]
