"""The fake draft is right for 70% of contexts with right inputs, and never with a wrong one: that is its whole use."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from model.draft import first_layer
from model.fake_hash import PIECES, joined, pieces
from protocol.fingerprint import difference
from protocol.kv_layout import LayerGroup
from tests.doubles.hash_model import FakeRunner
from tests.model.driving import Lane, Lanes, random_prompt
from tests.model.speculating import Chain

FAKE = FakeRunner(draft_seed=1)
STEPS = 4


def chain(prompt_seed: int = 0, room: int = 80, **options: int) -> Chain:
    return Chain(FAKE, random_prompt(11, FAKE.vocab_size, prompt_seed), room, **options)


def steps_of(one: Chain, room: int) -> Iterator[tuple[int, int]]:
    """(accepted, expected) of each step, until `room` tokens are known behind the prompt."""
    prompt_len = len(one.tokens) - 1
    while len(one.tokens) < prompt_len + room:
        expected = FAKE.expected_accepts(one.tokens, STEPS)
        yield one.step(STEPS), expected


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [0, 7])
def test_right_inputs_give_the_expected_lengths_and_tokens(page_size: int, chunk: int) -> None:
    for length in (1, 16, 33):
        prompt = random_prompt(length, FAKE.vocab_size, length)
        one = Chain(FAKE, prompt, 60, page_size, chunk)
        for accepted, expected in steps_of(one, 60):
            assert accepted == expected
        assert one.tokens[length:] == FAKE.expected_tokens(prompt, len(one.tokens) - length)


def test_seven_of_ten_proposals_are_right() -> None:
    luck = FAKE.expected_luck(random_prompt(5000, FAKE.vocab_size, 3))
    assert 0.67 < sum(luck) / len(luck) < 0.73
    accepted = [length for seed in range(6) for length, _ in steps_of(chain(seed), 80)]
    assert 1.4 < sum(accepted) / len(accepted) < 2.2  # 0.7 + 0.7^2 + 0.7^3 + 0.7^4 = 1.77
    assert {0, STEPS} <= set(accepted)


def other_hidden(one: Chain) -> None:
    one.hidden_1E = chain(99).hidden_1E


def hidden_of_the_step_before(one: Chain) -> None:
    kept = one.hidden_1E
    one.step(STEPS)
    one.hidden_1E = kept


@pytest.mark.parametrize("spoil", [other_hidden, hidden_of_the_step_before])
def test_no_proposal_from_a_wrong_hidden_state_is_right(spoil: Callable[[Chain], None]) -> None:
    """The first proposal of a step was made before. Later steps have right hidden states again."""
    seen = []
    for seed in range(6):
        one = chain(seed)
        spoil(one)
        expected = FAKE.expected_accepts(one.tokens, STEPS)
        seen.append((one.step(STEPS), expected))
        assert all(accepted == right for accepted, right in steps_of(one, 40))
    assert all(accepted == min(1, expected) for accepted, expected in seen)
    assert max(expected for _, expected in seen) > 1


def one_slot_of_another_request(one: Chain) -> None:
    other = chain(99)
    theirs = other.kv.layer(FAKE.num_layers)[other.lane.pages[0], :, 1]
    one.kv.layer(FAKE.num_layers)[one.lane.pages[0], :, 1] = theirs


def pages_in_another_order(one: Chain) -> None:
    layer = one.kv.layer(FAKE.num_layers)
    layer[one.lane.pages[:2]] = layer[one.lane.pages[1::-1]]


def token_off_by_one(one: Chain) -> None:
    """Slot i gets the token at i, not the one after it."""
    lane = one.lane
    lane.done = 0
    inp = one.lanes.model_input([(lane, len(lane.tokens) - 1)], [])
    _, features_TF = FAKE.forward_with_features(inp, one.kv)
    first_layer(one.draft, inp, one.draft.fuse(features_TF), one.kv)
    lane.done = len(lane.tokens) - 1


def draft_of_another_seed(one: Chain) -> None:
    lane = one.lane
    own, lane.done = one.draft, 0
    one.draft = FakeRunner(draft_seed=2).draft or own
    inp = one.lanes.model_input([(lane, len(lane.tokens) - 1)], [])
    _, features_TF = FAKE.forward_with_features(inp, one.kv)
    one.extend(replace(inp, input_ids_T=torch.tensor(lane.tokens[1:])), features_TF, 0)
    one.draft, lane.done = own, len(lane.tokens) - 1


def no_extend_behind_a_verify(one: Chain) -> None:
    """The slots of accepted proposals keep what the draft made of its own hidden states."""
    while one.step(STEPS, extends=False) == 0:
        one.proposal = FAKE.expected_tokens(one.tokens, 1)[0]


SPOILS = [
    one_slot_of_another_request,
    pages_in_another_order,
    token_off_by_one,
    draft_of_another_seed,
    no_extend_behind_a_verify,
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_no_proposal_from_wrong_draft_kv_is_right(spoil: Callable[[Chain], None]) -> None:
    one = chain()
    spoil(one)
    one.step(STEPS)  # its first proposal was made before
    pairs = list(steps_of(one, 60))
    assert len(pairs) > 20 and not any(accepted for accepted, _ in pairs) and any(expected for _, expected in pairs)


def test_every_number_matters() -> None:
    for index in range(FAKE.kv_layout(4).groups[1].head_dim * 2):
        one = chain(page_size=1)
        slot = one.kv.layer(FAKE.num_layers)[one.lane.pages[3]]
        slot.flatten()[index] += 1
        one.step(STEPS)
        assert not any(accepted for accepted, _ in steps_of(one, 30))
    lucky = next(one for one in map(chain, range(20)) if FAKE.expected_accepts(one.tokens, STEPS) > 1)
    inp, at = lucky.rows([lucky.proposal], lucky.lane.done), lucky.hidden_1E
    (right,) = first_layer(lucky.draft, inp, at, lucky.kv)[0].argmax(-1).tolist()
    for index in range(2 * PIECES):  # the depth behind them shows in later sums
        spoilt = at.clone()
        spoilt[0, index] += 1
        (token,) = first_layer(lucky.draft, inp, spoilt, lucky.kv)[0].argmax(-1).tolist()
        assert token != right


def test_numbers_survive_as_pieces() -> None:
    edges = torch.tensor([0, 1, -1, 2**22, 2**44 - 1, -(2**63), 2**63 - 1])
    assert torch.equal(joined(pieces(edges, edges.flip(0))), torch.stack([edges, edges.flip(0)], dim=-1))
    assert pieces(edges).abs().max() < 2**22


def test_features_do_not_depend_on_the_batch() -> None:
    lanes = Lanes(FAKE, 4)
    prompts = [random_prompt(length, FAKE.vocab_size, length) for length in (9, 5, 13)]
    alone = [lanes.lane(prompt, 4) for prompt in prompts]
    apart = [FAKE.forward_with_features(lanes.model_input([(lane, len(lane.tokens))], []), lanes.kv) for lane in alone]
    mixed = [lanes.lane(prompt, 4) for prompt in prompts]
    for lane, count in zip(mixed, (0, 4, 12), strict=True):
        if count:
            FAKE.forward(lanes.model_input([(lane, count)], []), lanes.kv)
            lane.done = count
    inp = lanes.model_input([(mixed[0], 9), (mixed[1], 1)], [mixed[2]])
    logits_LV, features_TF = FAKE.forward_with_features(inp, lanes.kv)
    expected = torch.cat([apart[0][1], apart[1][1][-1:], apart[2][1][-1:]])
    assert torch.equal(features_TF, expected)
    assert torch.equal(logits_LV, torch.cat([logits for logits, _ in apart]))
    assert torch.equal(logits_LV, FAKE.forward(inp, lanes.kv))


def test_layers_are_reported_behind_the_targets_as_they_are_written() -> None:
    one, seen = chain(), list[object]()
    inp = one.rows([3], one.lane.done)
    page = one.lane.pages[one.lane.done // 4]

    def on_layer(layer: int) -> None:
        seen.append((layer, bool(one.kv.layer(layer)[page, :, one.lane.done % 4].isfinite().all())))

    first_layer(one.draft, inp, one.hidden_1E, one.kv, on_layer)
    assert seen == [(2, True)] and one.kv.layout.num_layers == 3


def test_without_a_seed_there_is_no_draft() -> None:
    plain = FakeRunner()
    assert plain.draft is None and len(plain.kv_layout(4).groups) == 1
    assert plain.kv_layout(4).groups == FAKE.kv_layout(4).groups[:1]


def test_a_fingerprint_names_the_draft() -> None:
    ours = FAKE.fingerprint()
    assert difference(ours, FakeRunner(draft_seed=1).fingerprint(), "p", "d") is None
    assert difference(ours, FakeRunner().fingerprint(), "p", "d") == "--speculative-algorithm is fake on p, none on d"
    assert difference(ours, FakeRunner(draft_seed=2).fingerprint(), "p", "d") == "draft: seed is 1 on p, 2 on d"


NUM_LAYERS, TEXT_LEN = 3, 40
LAYERED = replace(FAKE, num_draft_layers=NUM_LAYERS)
Spoil = Callable[[int, Lanes, Lane, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def right_of_layers(chunk: int, spoilt: int = -1, spoil: Spoil | None = None) -> tuple[list[list[bool]], list[bool]]:
    """For every layer and slot of a text, read chunk by chunk, whether the proposal is right; and the text's luck.

    `spoil` changes the ids, the hidden states or the KV that the layer `spoilt` reads in the second chunk.
    """
    draft, tokens = LAYERED.draft, random_prompt(TEXT_LEN + NUM_LAYERS + 1, FAKE.vocab_size, 5)
    assert draft is not None
    lanes, ids = Lanes(LAYERED, 4), torch.tensor(tokens)
    lane, found = lanes.lane(tokens[:TEXT_LEN], 8), [list[bool]() for _ in range(NUM_LAYERS)]
    while lane.done < TEXT_LEN:
        inp = lanes.model_input([(lane, chunk)], [])
        _, hidden_TE = LAYERED.forward_with_features(inp, lanes.kv)
        for index in range(NUM_LAYERS):
            after_T = ids[lane.done + 1 + index :][:chunk]
            if index == spoilt and lane.done == chunk and spoil is not None:
                after_T, hidden_TE = spoil(index, lanes, lane, after_T, hidden_TE)
            hidden_TE = draft.run_layer(index, replace(inp, input_ids_T=after_T), hidden_TE, lanes.kv)
            proposed = draft.logits(hidden_TE).argmax(-1).tolist()
            known = [tokens[: lane.done + at + 2 + index] for at in range(chunk)]
            found[index] += [
                token == FAKE.expected_tokens(text, 1)[0] for token, text in zip(proposed, known, strict=True)
            ]
        lane.done += chunk
    return found, FAKE.expected_luck(tokens)


@pytest.mark.parametrize("chunk", [40, 8])
def test_every_layer_proposes_rightly_by_the_luck_of_its_context(chunk: int) -> None:
    found, luck = right_of_layers(chunk)
    for index in range(NUM_LAYERS):
        assert found[index] == luck[1 + index :][:TEXT_LEN]
    assert LAYERED.kv_layout(4).groups[1] == LayerGroup(NUM_LAYERS, 1, 4, lookahead=NUM_LAYERS)


def a_page_of_zeros(
    index: int, lanes: Lanes, lane: Lane, after_T: torch.Tensor, hidden_TE: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    lanes.kv.layer(FAKE.num_layers + index)[lane.pages[1]] = 0
    return after_T, hidden_TE


LAYER_SPOILS: dict[str, Spoil] = {
    "tokens are not shifted": lambda index, lanes, lane, after_T, hidden_TE: (after_T.roll(1), hidden_TE),
    "features come a position late": lambda index, lanes, lane, after_T, hidden_TE: (after_T, hidden_TE.roll(1, 0)),
    "a page is zero": a_page_of_zeros,
}


@pytest.mark.parametrize("spoil", LAYER_SPOILS.values(), ids=LAYER_SPOILS)
@pytest.mark.parametrize("spoilt", range(NUM_LAYERS))
def test_a_wrong_input_of_any_layer_costs_it_all_proposals_from_there_on(spoilt: int, spoil: Spoil) -> None:
    found, luck = right_of_layers(8, spoilt, spoil)
    for index in range(NUM_LAYERS):
        expected = luck[1 + index :][:TEXT_LEN]
        assert found[index][:8] == expected[:8] and any(expected[8:])
        assert found[index] == expected if index < spoilt else not any(found[index][9:])
