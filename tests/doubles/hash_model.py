"""The fake model's tokens, computed in plain integers: without pages, batches or tensors."""

from collections.abc import Iterator, Sequence

from model import fake
from model.sampler import _FIRST, _GAMMA, _SECOND, _WRAP


class FakeRunner(fake.FakeRunner):
    """The product's fake model, which can also say what it should answer."""

    def expected_tokens(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The greedy continuation of `prompt`."""
        return list(self._continuation(prompt, num_tokens))

    def _continuation(self, prompt: Sequence[int], num_tokens: int) -> Iterator[int]:
        total = 0
        tokens = list(prompt)
        done = 0
        for _ in range(num_tokens):
            for position in range(done, len(tokens)):
                for layer in range(self.num_layers):
                    total += self.expected_hash(tokens[position], position, layer)
            done = len(tokens)
            tokens.append((mix_int(total & _WRAP) >> 1) % self.vocab_size)
            yield tokens[-1]

    def expected_hash(self, token: int, position: int, layer: int) -> int:
        """What the token at `position` adds to the hash of its context in one layer."""
        print_ = mix_int(mix_int(mix_int(token) ^ position) ^ layer)
        total = 0
        for index in range(2 * self.num_kv_heads * self.head_dim):
            multiplier = fake._MULTIPLIERS[index % 4] + 2 * index
            total += (((print_ * multiplier) & _WRAP) >> (64 - fake._VALUE_BITS)) * multiplier
        return mix_int(mix_int((total & _WRAP) ^ position) ^ layer)


def mix_int(x: int) -> int:
    """One step of splitmix64 on the low 64 bits of `x`; the result is non-negative."""
    x = (x + _GAMMA) & _WRAP
    x = ((x ^ (x >> 30)) * _FIRST) & _WRAP
    x = ((x ^ (x >> 27)) * _SECOND) & _WRAP
    return x ^ (x >> 31)
