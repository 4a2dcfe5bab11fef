"""A draft goes on at decode where prefill has left it: the same tokens as without a draft, and every proposal that is
right. The fake draft's proposals are wrong from the first input on that is not what it should be."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from decode.requests import DecodeRequest
from protocol.frame import LastMessage
from protocol.messages_gateway import SamplingParams
from tests.cluster import Cluster
from tests.decode.driving import VOCAB, Phase, drive_to, expect_rest, make_cluster, prompt_of
from tests.doubles.hash_model import FakeRunner
from tests.explore.expected import expected
from tests.explore.proposals import Proposals
from tests.selecting import full
from transfer.landing.transfer import Delivered, FirstFrame, LastInDoubt, TransferFailed

RUNNER = FakeRunner(vocab_size=VOCAB, context_length=256, draft_seed=1)
TWO, THREE = (replace(RUNNER, num_draft_layers=count) for count in (2, 3))  # layers of the draft
HOT = 20.0  # choices of one prompt draw different tokens


Asked = tuple[str, list[int], SamplingParams, int]  # name, prompt, parameters, choices


def expect(cluster: Cluster, *requests: Asked) -> None:
    """Every choice is what one worker without a draft would draw."""
    for name, prompt, params, n in requests:
        assert name not in cluster.failures, cluster.failures[name]
        for choice in range(n):
            answer = cluster.answers[name, choice]
            assert (tuple(answer.ids), answer.finish) == expected(tuple(prompt), params, choice)


def served(cluster: Cluster, *requests: Asked) -> None:
    """Serves all at once."""
    for request in requests:
        cluster.assign(*request)
    cluster.run()
    expect(cluster, *requests)


class Served:
    """A cluster with the fake draft, all of whose answers and proposals are checked."""

    def __init__(
        self, topology: str = "1P1D", runner: FakeRunner = RUNNER, varied: int | None = None, **more: Any
    ) -> None:
        if runner.num_draft_layers > 1:
            more = {"num_steps": runner.num_draft_layers} | more
        self.cluster: Cluster = make_cluster(topology, runner, **more)
        planners = [worker.planner for worker in self.cluster.decodes.values()]
        self.proposals = [Proposals(planner, runner, varied, rests=False) for planner in planners]

    def serve(self, *requests: Asked) -> None:
        """See `served`."""
        served(self.cluster, *requests)

    def expect_kept(self, at_least: int) -> None:
        """So many proposals were right, and nothing is left in memory. Ends the cluster."""
        assert sum(proposal.num_kept for proposal in self.proposals) >= at_least
        expect_rest(self.cluster)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "serial": {"overlap": False},
    "mirrored": {"mirrored": True},
    "two pairs": {"topology": "2P2D"},
    "pages of one token": {"page_size": 1, "num_pages": 1024},
    "other pages at decode": {"decode_page_size": 3, "num_pages": 400},
    "whole prompts": {"chunk_size": 0},
    "one step": {"num_steps": 1},
    "five steps": {"num_steps": 5},
    "trees": {"tree": (2, 9)},
    "wide trees": {"tree": (5, 30), "page_size": 1, "num_pages": 1024, "overlap": False},
    "two layers": {"runner": TWO},
    "two layers, pages of one token": {"runner": TWO, "page_size": 1, "num_pages": 1024},
    "two layers, mirrored": {"runner": TWO, "mirrored": True},
    "three layers": {"runner": THREE},
    "three layers, serial, two pairs": {"runner": THREE, "overlap": False, "topology": "2P2D"},
    "three layers, two steps, other pages at decode": {
        "runner": THREE,
        "num_steps": 2,
        "decode_page_size": 3,
        "num_pages": 400,
    },
    "three layers, chunks of one token": {"runner": THREE, "chunk_size": 1},
    "three layers, fewer steps at times": {"runner": THREE, "varied": 1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_proposals_are_those_of_one_worker(kind: str) -> None:
    """Prompts end within a page and with one, within a chunk and with one; choices draw different first tokens."""
    it = Served(**KINDS[kind])
    requests = []
    for index, length in enumerate((1, 4, 7, 8, 21, 28, 40, 2, 3, 16)):
        params = SamplingParams(max_tokens=12 + index, temperature=(0.0, 0.7, HOT)[index % 3], seed=index)
        requests.append((f"r{index}", prompt_of(f"r{index}", length), params, 1 + index % 3))
    it.serve(*requests)
    it.expect_kept(60)


@pytest.mark.parametrize("runner", [RUNNER, TWO, THREE])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_hit_leaves_out_what_depends_on_other_tokens(page_size: int, runner: FakeRunner) -> None:
    """At both workers. The second prompt goes on differently after 16 tokens, and so does the third after 15."""
    it = Served(runner=runner, caches=True, page_size=page_size, num_pages=1024)
    params = SamplingParams(max_tokens=12, temperature=0.0)
    start, rest = prompt_of("start", 24), prompt_of("rest", 9)
    it.serve(("a", start, params, 1))
    for length in (16, 15, 24, 20):
        it.serve((f"b{length}", [*start[:length], *rest], params, 2))
        settled = (length - runner.num_draft_layers) // page_size * page_size
        assert it.cluster.cached[f"b{length}"] == settled
    it.serve(("again", start, params, 1))
    answered = [*start, *it.cluster.answers["a", 0].ids]
    it.serve(("next turn", [*answered, 5, 6], params, 1))
    assert it.cluster.cached["next turn"] >= (len(start) - runner.num_draft_layers) // page_size * page_size
    it.expect_kept(40)


OTHERS = {
    "no draft": replace(RUNNER, draft_seed=None),
    "another draft": replace(RUNNER, draft_seed=2),
    "another number of layers": TWO,
}


@pytest.mark.parametrize(
    "other,says",
    [
        ("no draft", "--speculative-algorithm is none on prefill-0, fake on decode-0"),
        ("another draft", "draft: seed is 2 on prefill-0, 1 on decode-0"),
        ("another number of layers", "num_layers of layer group 1 is 2 on prefill-0, 1 on decode-0"),
    ],
)
def test_a_prefill_worker_with_another_draft_is_refused(other: str, says: str) -> None:
    cluster = make_cluster("1P1D", RUNNER, prefill_runner=OTHERS[other])
    cluster.assign("r", prompt_of("r", 21), SamplingParams(max_tokens=4))
    cluster.run()
    assert (cluster.failures["r"].code, cluster.failures["r"].message) == ("layout_mismatch", says)
    expect_rest(cluster)


LACKING = ("prefill", "decode", "neither")
PAIRS = [  # each side of the plain kind; of the others, one each
    (lacking, kind) if kind == "plain" or (index + place) % len(LACKING) == 0 else full((lacking, kind))
    for index, kind in enumerate(("plain", "mirrored", "serial", "other pages at decode", "host memory", "trees"))
    for place, lacking in enumerate(LACKING)
]


@pytest.mark.parametrize(("lacking", "kind"), PAIRS)
def test_by_flag_the_requests_of_such_a_pair_decode_without_proposals(lacking: str, kind: str) -> None:
    options = {"num_pages": 1 + 40, "num_host_pages": 200} if kind == "host memory" else KINDS[kind]
    other = OTHERS["another draft" if lacking == "neither" else "no draft"]
    ours, theirs = (other, RUNNER) if lacking == "decode" else (RUNNER, other)
    cluster = make_cluster("1P1D", ours, prefill_runner=theirs, may_lack_draft=True, caches=True, **options)
    requests = []
    for index in range(8):
        params = SamplingParams(max_tokens=40, temperature=(0.0, HOT)[index % 2], seed=index)
        requests.append((f"r{index}", prompt_of(f"r{index // 2}", 20), params, 1 + index % 3))
    served(cluster, *requests)
    (decode,) = cluster.decodes.values()
    assert not any(value for name, value in decode.planner.counters.items() if name.startswith("spec_proposed_"))
    expect_rest(cluster)


def test_kv_that_lacks_the_drafts_is_found_by_nobody() -> None:
    """The next request of a whole pair would find it, and its proposals would be wrong."""
    it = Served(may_lack_draft=True, caches=True)
    cluster, prompt, params = it.cluster, prompt_of("one", 24), SamplingParams(max_tokens=16, temperature=0.0)
    tokens, _ = expected(tuple(prompt), params, 0)
    blind = cluster.add_prefill("prefill-1", 150, OTHERS["no draft"])
    whole = cluster.prefills.pop(100)
    cluster.assign("blind", prompt, params)
    cluster.run()
    assert tuple(cluster.answers["blind", 0].ids) == tokens
    assert sum(proposal.num_checked for proposal in it.proposals) == 0, "nothing was proposed"

    del cluster.prefills[150]
    cluster.prefills[100] = whole
    it.serve(("whole", [*prompt, *tokens, 1], params, 1), ("again", prompt, params, 1))
    cluster.prefills[150] = blind
    it.expect_kept(5)


@pytest.mark.parametrize(
    "hidden,says",
    [
        (b"", "prefill sent a hidden state of 0 bytes, expected 36"),
        (bytes(32), "prefill sent a hidden state of 32 bytes, expected 36"),
        (bytes(108), "prefill sent a hidden state of 108 bytes, expected 36"),
    ],
)
def test_a_request_whose_hidden_state_makes_no_sense_fails_alone(hidden: bytes, says: str) -> None:
    it = Served()
    params = SamplingParams(max_tokens=20, temperature=0.0)
    (decode,) = it.cluster.decodes.values()
    it.cluster.assign("bad", prompt_of("bad", 21), params, 2)
    it.cluster.assign("fine", prompt_of("fine", 30), params)
    drive_to(it.cluster, "bad", Phase.REQUESTED)
    request = decode.served.by_key["bad", 0]
    decode._on_transfer(request, Delivered(request.reservation, LastMessage((1, 2), 0, 0, hidden=hidden)))
    it.cluster.run()
    failure = it.cluster.failures["bad"]
    assert (failure.code, failure.message) == ("internal_error", says)
    expect(it.cluster, ("fine", prompt_of("fine", 30), params, 1))
    it.expect_kept(5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_hidden_state_that_is_not_finite_costs_proposals_and_no_request(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a unified worker, which never looks at it."""
    cluster: Cluster = make_cluster("1P1D", RUNNER)
    (decode,) = cluster.decodes.values()
    deliver = decode._on_transfer

    def poisoned(request: DecodeRequest, event: FirstFrame | Delivered | TransferFailed | LastInDoubt) -> None:
        if isinstance(event, Delivered) and request.assign.request_id == "bad":
            hidden = np.full(9, value, "<f4").tobytes()
            event = replace(event, last=replace(event.last, hidden=hidden))
        deliver(request, event)

    monkeypatch.setattr(decode, "_on_transfer", poisoned)
    params = SamplingParams(max_tokens=20, temperature=0.0)
    served(cluster, *((name, prompt_of(name, 21), params, 2) for name in ("bad", "fine")))
    expect_rest(cluster)
