from functools import partial

import pytest

from protocol.grammar import grammar_name
from protocol.messages_gateway import SamplingParams
from scheduler.execution.grammars import AnswerGrammars
from tests.decode.driving import VOCAB, make_cluster, prompt_of
from tests.doubles.late_pool import LatePool
from tests.grammars import _TEXTS, grammar_of, vocabulary

EOS = VOCAB - 1


def sampling(name: str) -> SamplingParams:
    return SamplingParams(max_tokens=8, temperature=0.0, eos_token_ids=(EOS,), grammar=name)


@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_nobody_waits_for_anothers_grammar(topology: str) -> None:
    cluster = make_cluster(topology)
    for worker in cluster.workers:
        slow = AnswerGrammars(partial(vocabulary, VOCAB), compiling=LatePool(3, 0.0))
        cluster.executor(worker).grammars = slow
    cluster.assign("slow", prompt_of("slow", 9), sampling(grammar_of([(1, 2)])))
    cluster.assign("plain", prompt_of("plain", 9), SamplingParams(max_tokens=4, temperature=0.0))
    cluster.run(until=lambda: bool(cluster.answers["plain", 0].finish))
    assert not cluster.answers["slow", 0].ids and not cluster.at_rest()
    assert sum(worker.stats().waiting for worker in cluster.workers) >= 1
    cluster.cancel("slow")
    cluster.run()
    assert not cluster.failures


@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_a_grammar_that_cannot_be_compiled_fails_its_request_alone(topology: str) -> None:
    _TEXTS[grammar_name("no grammar")] = "no grammar"
    cluster = make_cluster(topology)
    cluster.assign("bad", prompt_of("bad", 9), sampling(grammar_name("no grammar")))
    cluster.assign("good", prompt_of("good", 9), sampling(grammar_of([(1, 2)])), n=2)
    cluster.run()
    assert cluster.failures["bad"].code == "grammar_fault" and "cannot be followed" in cluster.failures["bad"].message
    assert [cluster.answers["good", choice].ids for choice in range(2)] == [[1, 2, EOS]] * 2


@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_rules_that_leave_no_token_fail_their_request_alone(topology: str) -> None:
    cluster = make_cluster(topology)
    params = SamplingParams(
        max_tokens=8, min_tokens=4, temperature=0.0, eos_token_ids=(EOS,), grammar=grammar_of([(1, 2)])
    )
    cluster.assign("bad", prompt_of("bad", 9), params)
    cluster.assign("good", prompt_of("good", 9), sampling(grammar_of([(1, 2)])))
    cluster.run()
    assert cluster.failures["bad"].code == "grammar_fault" and "min_tokens" in cluster.failures["bad"].message
    assert cluster.answers["good", 0].ids == [1, 2, EOS] and cluster.answers["bad", 0].ids == [1, 2]


@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_a_turn_that_has_learnt_a_grammar_is_followed_by_the_next_one_at_once(topology: str) -> None:
    """A worker that finds nothing to do sleeps, and the request would wait for a heartbeat."""
    cluster = make_cluster(topology)
    worker = cluster.computing[0]
    turns: list[bool] = []
    cluster.assign("r", prompt_of("r", 9), sampling(grammar_of([(1, 2)])))
    cluster.run(until=lambda: bool(len(worker.prompts.learning)))
    while not worker.planner.num_launches:
        turns.append(worker.turn())
    assert turns and all(turns)
