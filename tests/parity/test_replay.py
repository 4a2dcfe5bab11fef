"""A choice whose outputs are replayed on other workers goes on exactly where it was, wherever it was cut."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from model.runner import Runner
from protocol.messages_gateway import FirstToken, SamplingParams, ToGateway, Tokens
from testkit.checkpoints import OF_EXPERTS, WITH_WINDOWS, Architecture
from testkit.reference import reference
from tests.cluster import Cluster
from tests.doubles.hash_model import FakeRunner
from tests.parity.grid import PAIRWISE, TOPOLOGIES, Combination
from tests.parity.serving import runner_of
from tests.selecting import first, full

NUM_TOKENS = 12
PROMPT = [3, 14, 159, 26, 53, 58, 97, 93, 238, 46, 264, 33, 83, 279, 50, 288, 41]
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
SAMPLED = replace(GREEDY, temperature=1.3, top_k=40, top_p=0.9, min_p=0.02, seed=99)


@cache
def fake() -> FakeRunner:
    return FakeRunner(context_length=128)


def new_cluster(runner: Runner, topology: str, page_size: int, **options: Any) -> Cluster:
    sizes: dict[str, Any] = {"num_pages": 800 // page_size, "chunk_size": 7, **options}
    return Cluster(runner, topology, page_size=page_size, **sizes)


def undisturbed(
    runner: Runner, topology: str, params: SamplingParams, page_size: int, n: int, prompt: list[int]
) -> list[list[int]]:
    cluster = new_cluster(runner, topology, page_size)
    cluster.assign("whole", prompt, params, n)
    cluster.run()
    cluster.close()
    assert not cluster.failures
    return [cluster.answers["whole", choice].ids for choice in range(n)]


def check_every_cut(
    runner: Runner,
    topology: str,
    params: SamplingParams,
    page_size: int,
    n: int = 1,
    prompt: list[int] = PROMPT,
    **options: Any,
) -> None:
    """All cuts of all choices run at the same time. `options` are those of the cluster that replays."""
    whole = undisturbed(runner, topology, params, page_size, n, prompt)
    cluster = new_cluster(runner, topology, page_size, **options)
    seqs: dict[str, set[int]] = {}

    def note(message: ToGateway) -> None:
        if isinstance(message, FirstToken | Tokens):
            for piece in message.choices:
                seqs.setdefault(piece.request_id, set()).update(range(piece.seq, piece.seq + len(piece.token_ids)))

    cluster.on_message = note
    cuts = {f"{choice}-{cut}": (choice, cut) for choice in range(n) for cut in range(1, len(whole[choice]))}
    for name, (choice, cut) in cuts.items():
        cluster.assign(name, prompt, params, first_choice=choice, replayed=whole[choice][:cut])
    cluster.run()
    cluster.check()
    cluster.close()
    assert not cluster.failures and cuts
    for decode in cluster.decodes.values():
        refused = {
            name: count for name, count in decode.stats().counters.items() if name.startswith("rejected") and count
        }
        assert not refused or params.stop_token_ids, "nothing is sent that nobody waits for, but for a late surprise"
    for name, (choice, cut) in cuts.items():
        answer = cluster.answers[name, choice]
        assert answer.ids == whole[choice], f"choice {choice}, cut after {cut}"
        assert answer.finish == ("stop" if whole[choice][-1] in params.ending_ids else "length")
        assert seqs[name] == set(range(cut, len(whole[choice]))), "the replayed outputs are not sent again"


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("page_size", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_every_cut(topology: str, page_size: int) -> None:
    check_every_cut(fake(), topology, GREEDY, page_size)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_endings_and_min_tokens_count_replayed_outputs(topology: str) -> None:
    plain = fake().expected_tokens(PROMPT, NUM_TOKENS)
    params = replace(GREEDY, stop_token_ids=(plain[3],), min_tokens=6)
    [whole] = undisturbed(fake(), topology, params, 4, 1, PROMPT)
    params = replace(params, stop_token_ids=(plain[3], whole[9]))
    [whole] = undisturbed(fake(), topology, params, 4, 1, PROMPT)
    assert whole[:3] == plain[:3] and whole[3] != plain[3], "min_tokens has changed a token"
    assert len(whole) == 10, "a stop token has ended it, some time after min_tokens"
    check_every_cut(fake(), topology, params, 4)


@pytest.mark.slow
@pytest.mark.parametrize("params, n", [(GREEDY, 1), (SAMPLED, 3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_cut_of_a_real_model(topology: str, params: SamplingParams, n: int) -> None:
    prompt = list(reference("qwen3").prompts[2])  # whose margins were asserted
    check_every_cut(runner_of("qwen3"), topology, params, 16, n, prompt)


@pytest.mark.slow
@pytest.mark.parametrize("arch", first(1, (*OF_EXPERTS, *WITH_WINDOWS)))
def test_every_cut_of_a_model_with_experts(arch: Architecture) -> None:
    check_every_cut(runner_of(arch), "1P1D", GREEDY, 16, 1, list(reference(arch).prompts[2]))


@pytest.mark.parametrize("combination", [full(each) for each in PAIRWISE if each.arch in OF_EXPERTS], ids=str)
def test_every_cut_in_every_combination(combination: Combination) -> None:
    """The pages, chunks, overlap and topology of the workers that replay."""
    sizes = {"chunk_size": combination.chunk_size, "overlap": combination.overlap}
    prompt = list(reference(combination.arch).prompts[2])
    check_every_cut(
        runner_of(combination.arch), combination.topology, GREEDY, combination.page_size, 1, prompt, **sizes
    )


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
@pytest.mark.parametrize(
    "n, first_choice, replayed, why",
    [
        (2, 0, [5], "num_replayed: got 1 for 2 choices, expected one choice"),
        (1, 0, [5] * NUM_TOKENS, "num_replayed: got 12, expected 0 to 11"),
        (1, 2**31, [], "first_choice: got 2147483648, expected 0 to 2147483647"),
    ],
)
def test_senseless_replays_are_refused(topology: str, n: int, first_choice: int, replayed: list[int], why: str) -> None:
    cluster = new_cluster(fake(), topology, 4)
    cluster.assign("r", PROMPT, GREEDY, n, first_choice=first_choice, replayed=replayed)
    cluster.run(lambda: bool(cluster.failures))
    assert cluster.failures["r"].code == "bad_request" and cluster.failures["r"].message.startswith(why)
    assert cluster.at_rest()
    cluster.close()


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_what_fits_to_the_last_slot_fits_when_it_is_replayed(topology: str) -> None:
    whole = fake().expected_tokens(PROMPT, NUM_TOKENS)
    num_kv = len(PROMPT) + NUM_TOKENS - 1
    assert num_kv % 4 == 0, "pages are full"
    for cut in (0, 1, 5, NUM_TOKENS - 1):
        cluster = new_cluster(fake(), topology, 4, num_pages=num_kv // 4 + 1, max_context=num_kv)
        cluster.assign("r", PROMPT, GREEDY, replayed=whole[:cut])
        cluster.run()
        cluster.close()
        assert not cluster.failures and cluster.answers["r", 0].ids == whole
