"""The public JSON Schema test suite over HTTP: every answer of a schema that is not refused follows it."""

import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from models.train.train import STORY_FOLDER
from testkit.checkpoints import make_checkpoint
from tests.e2e.asking import CHAT, MESSAGES
from tests.e2e.baton_process import PATIENCE_S, BatonProcess
from tests.schema_suite import Group, follows, groups

FLAGS = "--port 0 --dtype float32 --max-total-tokens 16384"
MAX_TOKENS = 100


def ask(baton: BatonProcess, seed: int, group: Group) -> tuple[Group, httpx.Response]:
    """Two choices, the first ones of which are greedy."""
    sampling = {"max_tokens": MAX_TOKENS, "seed": seed, "temperature": 1.0 if seed % 2 else 0.0, "n": 1 + seed % 2}
    body = {"messages": MESSAGES, "guided_json": group.schema, **sampling}
    return group, httpx.post(baton.url + CHAT, json=body, timeout=PATIENCE_S)


@pytest.mark.full
@pytest.mark.parametrize("draft", ("draft2020-12", "draft7"))
@pytest.mark.parametrize("weights", ("bundled", "random"))
def test_every_answer_follows_its_schema(weights: str, draft: str, tmp_path: Path) -> None:
    folder = STORY_FOLDER
    if weights == "random":
        folder = make_checkpoint(tmp_path / "llama", "llama", vocab_size=1100, eos_token_id=2)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(STORY_FOLDER / name, folder / name)
    with (
        BatonProcess("serve", str(folder), *FLAGS.split(), log=tmp_path / "log") as baton,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(partial(ask, baton), *zip(*enumerate(groups(draft)), strict=True)))

    found = Counter[str]()
    for group, answer in answers:
        found[str(answer.status_code)] += 1
        for choice in answer.json()["choices"] if answer.status_code == 200 else ():
            text, reason = choice["message"]["content"], choice["finish_reason"]
            found[reason] += 1
            assert reason == "length" or follows(text, group), (group, text)
    assert {*found} == {"200", "400", "stop", "length"} and found["200"] > 190, found
