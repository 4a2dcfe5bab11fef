"""The fake model's tokens and its draft's luck, computed in plain integers: without pages, batches or tensors."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile

from model import fake, fake_draft, fake_hash
from model.sampler import _FIRST, _GAMMA, _SECOND, _WRAP
from tests.doubles.listed_tree import ListedTree


class FakeRunner(fake.FakeRunner):
    """The product's fake model, which can also say what it should answer."""

    def expected_tokens(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The greedy continuation of `prompt`."""
        return list(self._continuation(prompt, num_tokens))

    def expected_accepts(self, context: Sequence[int], steps: int) -> int:
        """How many of `steps` proposals are right after the known tokens `context`, greedily, with right inputs."""
        text = [*context, *self.expected_tokens(context, steps - 1)]
        return sum(takewhile(bool, self.expected_luck(text)[len(context) - 1 :]))

    def expected_luck(self, tokens: Sequence[int]) -> list[bool]:
        """For every token, whether the fake draft proposes rightly after it and all before it."""
        added = (self._token_hash(token, at) for at, token in enumerate(tokens))
        draws = (mix_int(total & _WRAP ^ fake_draft._LUCK) >> 1 for total in accumulate(added))
        return [draw % 10 < fake_draft.RIGHT_OF_TEN for draw in draws]

    def expected_tree(self, context: Sequence[int], room: int, topk: int, num_steps: int, num_nodes: int) -> ListedTree:
        """The fake draft's tree behind the known tokens `context`, with right inputs. Slots are counted from the last
        token's on; those from `room` on are never written."""
        last, whole = len(context) - 1, sum(self._token_hash(token, at) for at, token in enumerate(context))

        def proposals(path: tuple[int, ...], slot: int) -> list[tuple[int, float]]:
            positions = (min(last + depth, last + room) for depth in range(1, len(path) + 1))
            total = (whole + sum(map(self._token_hash, path, positions))) & _WRAP
            luck = mix_int(total ^ fake_draft._LUCK) >> 1
            off = 0 if luck % 10 < fake_draft.RIGHT_OF_TEN else -1 if luck % 10 < fake_draft.SECOND_OF_TEN else 1
            first = (mix_int(total) >> 1) + (off if slot < room else 1)
            others = fake_draft.OTHER_CHOICES + 1
            scores = [(others - rank + (luck >> 40) % 4 * others) * fake_draft._CHOICE_STEP for rank in range(1, topk)]
            ranked = zip(range(topk), [0, *(score - 100 for score in scores)], strict=True)
            return [((first + rank) % self.vocab_size, score) for rank, score in ranked]

        return ListedTree(proposals, topk, num_steps, num_nodes)

    def _continuation(self, prompt: Sequence[int], num_tokens: int) -> Iterator[int]:
        total = 0
        tokens = list(prompt)
        done = 0
        for _ in range(num_tokens):
            for position in range(done, len(tokens)):
                total += self._token_hash(tokens[position], position)
            done = len(tokens)
            tokens.append((mix_int(total & _WRAP) >> 1) % self.vocab_size)
            yield tokens[-1]

    def _token_hash(self, token: int, position: int) -> int:
        """What the token adds in all layers together."""
        return sum(self.expected_hash(token, position, layer) for layer in range(self.num_layers))

    def expected_hash(self, token: int, position: int, layer: int) -> int:
        """What the token at `position` adds to the hash of its context in one layer."""
        print_ = mix_int(mix_int(mix_int(token) ^ position) ^ layer)
        total = 0
        for index in range(2 * self.num_kv_heads * self.head_dim):
            multiplier = fake_hash.MULTIPLIERS[index % 4] + 2 * index
            total += (((print_ * multiplier) & _WRAP) >> (64 - fake_hash.VALUE_BITS)) * multiplier
        return mix_int(mix_int((total & _WRAP) ^ position) ^ layer)


def mix_int(x: int) -> int:
    """One step of splitmix64 on the low 64 bits of `x`; the result is non-negative."""
    x = (x + _GAMMA) & _WRAP
    x = ((x ^ (x >> 30)) * _FIRST) & _WRAP
    x = ((x ^ (x >> 27)) * _SECOND) & _WRAP
    return x ^ (x >> 31)
