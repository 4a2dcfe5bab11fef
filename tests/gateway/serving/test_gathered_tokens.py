import random

from gateway.serving.gathered import PackedTokens
from gateway.words.scored import ScoredToken
from protocol.logprobs import TokenLogprob


def test_packed_tokens_are_what_was_added() -> None:
    rng = random.Random(6)
    for _ in range(50):
        tokens, packed = list[ScoredToken](), PackedTokens()
        for place in range(rng.randrange(40)):
            num_top = rng.choice((2, 2, 2, 0, 5))  # a worker of a small vocabulary may send fewer
            top = tuple((rng.randrange(2**31), -rng.randrange(99) / 4) for _ in range(num_top))
            value = rng.choice((0.0, -0.25, float("-inf")))
            tokens.append(ScoredToken(rng.randrange(2**31), place * 2**33, TokenLogprob(value, rng.randint(1, 9), top)))
            packed.add(tokens[-1])
        assert list(packed) == tokens == list(packed) and len(packed) == len(tokens)
        assert packed.num_bytes == sum(12 + 8 + 8 * len(each.scored.top) for each in tokens if each.scored is not None)
        assert all(each in packed for each in tokens)
