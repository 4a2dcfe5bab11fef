"""A draft beside the model: real processes, over HTTP. Tokens are those without one, and proposals are kept."""

import random
import re
from pathlib import Path

import pytest

from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, BatonProcess
from tests.selecting import first

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()
NUM_TOKENS = 60
TOPOLOGIES = {"pair": "", "two of each": "--prefill 2 --decode 2", "unified": "--prefill 0 --decode 0 --unified 1"}


CHAIN = "--speculative-adaptive false"
TREE = "--speculative-eagle-topk 2 --speculative-num-draft-tokens 8"
LAYERS = f"{CHAIN} --speculative-algorithm mtp"
SERIAL = "--disable-overlap-schedule"
SHAPES = [
    *(("pair", CHAIN, ""), ("unified", LAYERS, "")),
    *(("two of each", CHAIN, ""), ("unified", TREE, ""), ("pair", CHAIN, SERIAL)),
    *(("two of each", TREE, ""), ("two of each", LAYERS, ""), ("two of each", CHAIN, SERIAL)),
    *(("unified", CHAIN, ""), ("unified", CHAIN, SERIAL)),
]


@pytest.mark.parametrize("topology,shape,overlap", first(2, SHAPES, num_broad=3))
def test_tokens_are_those_without_a_draft(
    fake_folder: Path, tmp_path: Path, topology: str, shape: str, overlap: str
) -> None:
    """Twelve requests at once, in chunks, some of which are preempted."""
    rng = random.Random(16)
    prompts = [[rng.randrange(RUNNER.vocab_size) for _ in range(rng.randint(1, 90))] for _ in range(12)]
    steps = f"--speculative-num-steps 3 {shape}"
    algorithm = "mtp" if shape == LAYERS else "eagle"
    of_folder = f"--speculative-algorithm eagle --speculative-draft-model-path {fake_folder}"
    draft = f"{steps} {'' if shape == LAYERS else of_folder}"
    sizes = "--port 0 --page-size 4 --max-total-tokens 640 --chunked-prefill-size 32"
    flags = f"{sizes} {draft} {TOPOLOGIES[topology]} {overlap}".split()
    with BatonProcess(str(fake_folder), *flags, log=tmp_path / "log", program=FAKE) as baton:
        answer = baton.complete(prompt=prompts, max_tokens=NUM_TOKENS, temperature=0, return_token_ids=True, n=2)
        expected = [RUNNER.expected_tokens(prompt, NUM_TOKENS) for prompt in prompts for _ in range(2)]
        assert [choice["token_ids"] for choice in answer["choices"]] == expected

        named = {"algorithm": algorithm, "folder": str(fake_folder), "num_steps": 3}
        assert [row["draft"] for row in baton.http.get("/workers").json() if row["draft"] != named] == []
        assert re.search(rf" ready .*algorithm={algorithm} folder=\S+ num_steps=3", (tmp_path / "log").read_text())

        assert baton.wait_for_rest()
        rows = baton.metric("spec_proposed_tokens_total", position="0")
        kept = [baton.metric("spec_accepted_tokens_total", position=str(at)) for at in range(3)]
        assert (0.6 < kept[0] / rows < 0.8) if shape != TREE else (0.8 < kept[0] / rows < 0.96)
        assert kept[0] > kept[1] > kept[2] > rows / 5
