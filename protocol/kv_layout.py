"""The shape of KV memory, as two workers must agree on it before a byte moves.

What it does not know: where the memory is, or how many pages a worker has.
"""

from dataclasses import dataclass

from protocol.message import Count, Message, Text

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class KvLayout(Message):
    """KV of one layer is `(num_pages, 2, page_size, num_kv_heads, head_dim)`: [:, 0] is K, [:, 1] is V.

    Layers lie one after the other, so that page `p` of layer `l` is one contiguous run of `page_bytes`.
    """

    num_layers: Count
    num_kv_heads: Count
    head_dim: Count
    page_size: Count  # tokens
    dtype: Text  # a key of ITEM_BYTES

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "page_size"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"KvLayout.{name}: got {value}, expected at least 1")
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"KvLayout.dtype: got {self.dtype!r}, expected one of {', '.join(ITEM_BYTES)}")

    @property
    def token_bytes(self) -> int:
        """Bytes of K (or of V) of one token in one layer."""
        return self.num_kv_heads * self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer, K and V together."""
        return 2 * self.page_size * self.token_bytes

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens (the last one perhaps in part)."""
        return -(-num_tokens // self.page_size)


def mismatch(ours: KvLayout, theirs: KvLayout, our_id: str, their_id: str) -> str | None:
    """One sentence naming the first field in which the layouts of two workers differ, or None when KV can move between
    them: pages may be of different sizes."""
    for name in ("num_layers", "num_kv_heads", "head_dim", "dtype"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other:
            return f"{name} is {mine} on {our_id}, {other} on {their_id}"
    return None
