"""Any worker may die at any step, as long as somebody else can serve; a frame may be damaged on the way."""

from dataclasses import replace
from functools import cache
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.runner import ModelRunner
from protocol.frame import HEADER_BYTES
from protocol.messages_gateway import SamplingParams
from testkit.reference import reference
from tests.cluster import Worker
from tests.decode.driving import VOCAB, greedy, prompt_of
from tests.decode.driving import reference as fake_reference
from tests.doubles.backend_inproc import InprocNetwork, Packet
from tests.doubles.hash_model import FakeRunner
from tests.retry.controlled import Controlled, Loss

LOSSES: tuple[Loss, ...] = get_args(Loss)


def can_die(cluster: Controlled, worker: Worker) -> bool:
    """Whether the others can serve without it."""
    prefills = sum(each is not worker for each in cluster.prefills.values())
    decodes = sum(each is not worker for each in cluster.decodes.values())
    return any(each is not worker for each in cluster.unifieds) or bool(prefills and decodes)


def kill_at(cluster: Controlled, plan: list[tuple[int, int, Loss]]) -> list[int]:
    """Kills by plan of (events from the last kill on, which worker, how); the list tells what was done."""
    done: list[int] = []
    left = list(plan)
    num_events = 0

    def watch() -> None:
        nonlocal num_events
        num_events += 1
        if not left or num_events < left[0][0]:
            return
        _, which, loss = left.pop(0)
        num_events = 0
        victims = [worker for worker in cluster.workers if can_die(cluster, worker)]
        if victims and not all(client.is_done for client in cluster.clients.values()):
            done.append(which)
            cluster.kill(victims[which % len(victims)], loss)

    cluster.watch = watch
    return done


@pytest.mark.slow
@given(data=st.data())
@settings(deadline=None, max_examples=50)
def test_any_worker_at_any_step(data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from(["2P2D", "1P3D", "3P1D", "3U", "1P1D2U"]))
    options = {"overlap": data.draw(st.booleans()), "page_size": data.draw(st.sampled_from([1, 4, 16]))}
    num_pages = 1024 // int(options["page_size"])
    runner = FakeRunner(vocab_size=VOCAB, context_length=256)
    cluster = Controlled(runner, topology, max_attempts=9, num_pages=num_pages, **options)
    losses = st.tuples(st.integers(0, 80), st.integers(0, 5), st.sampled_from(LOSSES))
    kill_at(cluster, data.draw(st.lists(losses, min_size=1, max_size=3)))
    requests = data.draw(
        st.lists(st.tuples(st.integers(1, 50), st.integers(1, 16), st.integers(1, 3)), min_size=1, max_size=5)
    )
    wanted = {}
    for index, (length, max_tokens, n) in enumerate(requests):
        name, prompt = f"r{index}", prompt_of(f"r{index}", length)
        plain = runner.expected_tokens(prompt, max_tokens)
        stops = (data.draw(st.sampled_from(plain)),) if data.draw(st.booleans()) else ()
        params = greedy(max_tokens, stop_token_ids=stops, min_tokens=data.draw(st.integers(0, max_tokens)))
        wanted[name] = fake_reference(prompt, params)
        cluster.ask(name, prompt, params, n)
    cluster.finish()
    for name, (tokens, finish) in wanted.items():
        client = cluster.clients[name]
        assert client.error is None and client.tokens == [tokens] * client.num_choices
        assert client.finish == [finish] * client.num_choices
    cluster.close()


@pytest.mark.parametrize("index", [0, 3, 8])
@pytest.mark.parametrize("topology", ["1P1D", "2P2D"])
def test_kv_that_is_damaged_on_the_way_is_computed_again(index: int, topology: str) -> None:
    seen: list[Packet] = []

    def damage(packet: Packet) -> list[Packet]:
        seen.append(packet)
        return [packet.corrupted(HEADER_BYTES) if len(seen) - 1 == index else packet]

    runner = FakeRunner(vocab_size=VOCAB, context_length=256)
    cluster = Controlled(runner, topology, network=InprocNetwork(damage))
    params = greedy(12)
    for name in ("r0", "r1"):
        cluster.ask(name, prompt_of(name, 30), params, 2)
    cluster.finish()
    retries = {code: count for code, count in cluster.control.dispatch.retries.counts.items() if count}
    assert retries == {"kv_not_delivered": cluster.num_retries}
    assert 1 <= cluster.num_retries <= 2, "once; choice by choice if their first tokens were there before the damage"
    for name, client in cluster.clients.items():
        tokens, _ = fake_reference(prompt_of(name, 30), params)
        assert client.error is None and client.tokens == [tokens] * 2
    last = cluster.assigns[-1][1]
    first_pairs = {
        (worker, assign.prefill) for worker, assign in cluster.assigns if assign.request_id == last.request_id
    }
    assert len(first_pairs) == (1 if topology == "1P1D" else 2), "another pair, where there is one"
    cluster.close()


# ---- a real model, greedy and sampled ----

GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
SAMPLED = replace(GREEDY, temperature=1.2, top_k=50, top_p=0.95, seed=7)


@cache
def qwen3() -> ModelRunner:
    return ModelRunner.load(reference("qwen3").folder, device="cpu", dtype="float32")


def run_real(topology: str, params: SamplingParams, n: int, plan: list[tuple[int, int, Loss]]) -> list[list[list[int]]]:
    cluster = Controlled(qwen3(), topology, max_attempts=9, page_size=16, chunk_size=16)
    done = kill_at(cluster, plan)
    for index, prompt in enumerate(reference("qwen3").prompts[:4]):
        cluster.ask(f"r{index}", prompt, params, n)
    cluster.finish()
    assert len(done) == len(plan) and (not plan or cluster.num_retries), "the losses took effect"
    assert not any(client.error for client in cluster.clients.values())
    cluster.close()
    return [client.tokens for client in cluster.clients.values()]


@pytest.mark.slow
@pytest.mark.parametrize("params, n", [(GREEDY, 1), (SAMPLED, 3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("topology", "plan"),
    [("3P3D", [(30, 4, "gone"), (40, 1, "silent"), (60, 3, "gone")]), ("3U", [(20, 0, "gone"), (30, 1, "leaving")])],
    ids=["3P3D", "3U"],
)
def test_a_real_model_says_the_same(
    topology: str, params: SamplingParams, n: int, plan: list[tuple[int, int, Loss]]
) -> None:
    undisturbed = run_real("1U", params, n, [])
    if params is GREEDY:
        continuations = reference("qwen3").continuations[:4]
        assert [tokens for [tokens] in undisturbed] == [list(each[:24]) for each in continuations]
    else:
        assert len({tuple(tokens) for choices in undisturbed for tokens in choices}) == 12, "really sampled"
    assert run_real(topology, params, n, plan) == undisturbed


# ---- what the gateway knows at once, or only in the end ----


def test_a_connection_that_is_gone_is_noticed_when_a_request_is_sent() -> None:
    cluster = Controlled(FakeRunner(vocab_size=VOCAB, context_length=256), "1P2D")
    victim = cluster.decodes.pop(200)
    cluster.executor(victim).close()
    for name in ("r0", "r1", "r2"):
        cluster.ask(name, prompt_of(name, 20), greedy(4))
    assert cluster.control.membership.num_lost == 1 and cluster.num_retries == 0
    assert {worker for worker, _ in cluster.assigns} == {"decode-1"}
    cluster.finish()
    assert all(client.error is None for client in cluster.clients.values())
    cluster.close()
