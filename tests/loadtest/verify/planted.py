"""`python -m tests.loadtest.verify.planted`: what share of planted errors of one token `baton verify` sees.

A server answers. Then one token of an answer becomes another one of its list, and `baton verify` judges that.
*Delivered*: only that token is damaged, the rest is as it was. *Computed*: the server goes on from the wrong token, so
all that follows is right behind it. The margin is how far the planted token is below the right one. `--twins`: a model
whose tokens come in pairs with the very same logits.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from safetensors.torch import load_file, save_file

from loadtest.deployment import UNIFIED, deployed
from loadtest.http_exchange import Server
from loadtest.verify.answers import Choice
from loadtest.verify.bounds import Bounds
from loadtest.verify.client import Client
from loadtest.verify.judge import DEFECTS, Verdict, after_scoring, judge, judge_scored
from loadtest.verify.phases import Made, made_asks
from loadtest.verify.probe import probe
from loadtest.verify.quiet import REPEAT, Tried, calibrate
from loadtest.verify.scoring import ServerScorer
from loadtest.verify.ties import Noise
from runtime.clock import MonotonicClock
from tests.loadtest.verify.answering import heard

STORY = Path(__file__).resolve().parents[3] / "models" / "story"
ROWS = (0.0, 1.0, 2.0, 4.0, 16.0)  # of the table, in multiples of tau
VOCAB, NUM_ASKS, PLACES = 1000, 16, 3


def with_twins(folder: Path) -> Path:
    """The bundled model with an output head of its own, in which token 2k + 1 has the row of token 2k."""
    shutil.copytree(STORY, folder, dirs_exist_ok=True)
    config = json.loads((STORY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    weights = load_file(STORY / "model.safetensors")
    head = weights["model.embed_tokens.weight"].clone()
    head[1::2] = head[0::2]
    save_file({**weights, "lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Planting:
    """Plants errors in the answers of one server."""

    def __init__(self, client: Client, scorer: ServerScorer) -> None:
        self._client, self._scorer = client, scorer
        self.tau = 0.0

    async def run(self, made: list[Made]) -> AsyncIterator[tuple[str, float, Verdict]]:
        """Each error as it was planted: its kind, its margin, and the verdict on it."""
        tried = [await self._try(ask) for ask in made]
        noise = calibrate(tried, [self._scorer.name])[REPEAT]
        self.tau = noise.tau
        rng = random.Random(1)
        for one in tried:
            right = one.answers[0]
            for index in rng.sample(range(len(right.tokens) - 1), PLACES):
                others = [token for token in right.tops[index] if token != right.tokens[index]]
                for token in others:
                    top = right.tops[index]
                    margin = top[right.tokens[index]] - top[token]
                    delivered = replace(
                        right, tokens=(*right.tokens[:index], token, *right.tokens[index + 1 :]), text=""
                    )
                    computed = await self._computed(one.made, right, index, int(token))
                    for kind, said in (("delivered", delivered), ("computed", computed)):
                        yield kind, margin, await self._verdict(one.made, right, said, noise)

    async def _try(self, made: Made) -> Tried:
        tried = Tried(made)
        for time in range(3):
            tried.heards.append(await self._client.ask(made.ask, stream=time == 2, is_cold=time == 0))
        for choice in tried.distinct:
            scored = await self._scorer.score(made.ask.prompt, [int(token) for token in choice.tokens])
            tried.scores.setdefault(self._scorer.name, {})[choice.tokens] = scored or []
        return tried

    async def _computed(self, made: Made, right: Choice, index: int, token: int) -> Choice:
        """The right answer until `index`, `token` there, and what the server says behind it."""
        start = (*right.tokens[:index], token)
        prompt = (*made.ask.prompt, *(int(token_id) for token_id in start))
        ask = replace(made.ask, prompt=prompt, max_tokens=made.ask.max_tokens - index - 1)
        rest = (await self._client.ask(ask, stream=False)).answer()[0]
        logprobs = (*right.logprobs[:index], right.tops[index][token], *rest.logprobs)
        return Choice((*start, *rest.tokens), rest.finish, "", logprobs, (*right.tops[: index + 1], *rest.tops))

    async def _verdict(self, made: Made, right: Choice, said: Choice, noise: Noise) -> Verdict:
        """What `baton verify` would say of it."""
        judged = judge(heard(said, counted=len(said.tokens), stream=False), {0: replace(right, text="")}, noise.tau)
        if judged.verdict in (Verdict.TIED, Verdict.SUSPECT):
            scored = await self._scorer.score(made.ask.prompt, [int(token) for token in said.tokens])
            by_score = judge_scored(said, scored or [], noise.tau, is_greedy=True, has_drift=True)
            judged = after_scoring(judged, [by_score], is_known=True)
        return judged.verdict


async def table(server: Server) -> None:
    """Prints the table of one server."""
    clock = MonotonicClock()
    dialect = await probe(server, clock, None)
    client = Client(server, clock, dialect, Bounds(rate=1e6, requests=10**9))
    planting = Planting(client, ServerScorer(server, clock, dialect.way, {"model": dialect.model}, 60.0))
    counts_of: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    async for kind, margin, verdict in planting.run(made_asks(1, NUM_ASKS, VOCAB, 24, dialect.context)):
        row = bisect_left(ROWS, max(0.0, margin) / planting.tau)
        counts_of[kind, row]["found" if verdict in DEFECTS else str(verdict)] += 1

    lines = [f"tau {planting.tau:.4g}", "", "| error | margin, in tau | planted | found | suspect |"]
    lines.append("|---|---|---:|---:|---:|")
    names = ["0", *(f"{low:g} to {high:g}" for low, high in pairwise(ROWS)), f"over {ROWS[-1]:g}"]
    for (kind, row), counts in sorted(counts_of.items()):
        total = counts.total()
        shares = " | ".join(f"{counts[word] / total:.0%}" for word in ("found", "suspect"))
        lines.append(f"| {kind} | {names[row]} | {total} | {shares} |")
    sys.stdout.write("\n".join([*lines, ""]))


async def main() -> None:
    """Serves the model, and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twins", action="store_true")
    parser.add_argument("--dtype", default="bfloat16")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = with_twins(Path(folder) / "story") if asked.twins else STORY
        async with deployed([str(model), *UNIFIED, "--dtype", asked.dtype]) as url:
            await table(Server.at(url, ""))


if __name__ == "__main__":
    asyncio.run(main())
