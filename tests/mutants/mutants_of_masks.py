"""Sabotages of tree masks in the model room, and of moving the KV of a path."""

from tests.mutants.mutant import Mutant

CPU = "tests/model/test_attention_cpu.py"
KERNELS = "tests/model/test_cpu_kernels.py"
FAKE = "tests/model/test_fake.py"
GRAPHS = "tests/model/test_graphs.py"
PAGES = "tests/model/test_paged_kv.py"

MASKS = (
    Mutant(
        "a tree mask begins one slot late",
        "is_visible",
        "behind < 0",
        "behind <= 0",
        "a node without the first bit sees that slot",
        tests=(CPU,),
    ),
    Mutant(
        "a tree mask begins one slot early",
        "is_visible",
        "behind = slots - starts",
        "behind = slots - starts + 1",
        "every bit speaks for the slot before its own",
        tests=(CPU,),
    ),
    Mutant(
        "the last bit of a tree mask counts for all slots behind it",
        "is_visible",
        "behind < TREE_SLOTS",
        "True",
        "slots that no bit stands for are read",
        tests=(CPU,),
    ),
    Mutant(
        "the last bit of a tree mask is the sign and does not count",
        "is_visible",
        "behind < TREE_SLOTS",
        "behind < TREE_SLOTS - 1",
        "a tree of 64 nodes loses the last one",
        tests=(CPU,),
    ),
    Mutant(
        "a node does not see itself",
        "is_visible",
        "bits >> __slot",
        "(bits & ~(bits & -bits)) >> __slot",
        "the lowest bit, of a root its own, is dropped",
        tests=(CPU,),
    ),
    Mutant(
        "a group of decodes has the tree masks of the rows beside",
        "_decode_group",
        "each[members_N, None]",
        "each[: len(members), None]",
        "a node sees what another one may see",
        tests=(CPU,),
    ),
    Mutant(
        "V of slots behind a context alone is zeroed",
        "_decode_group",
        "unseen = unseen_NS.flatten().nonzero()[:, 0]",
        "unseen = (slots_S >= lens_N1).flatten().nonzero()[:, 0]",
        "what a rejected node has left, NaN too, is in every sum",
        tests=(CPU,),
    ),
    Mutant(
        "the kernel gets no tree mask",
        "CpuAttention.plan",
        "inp.tree_mask",
        "None",
        "a node sees its siblings",
        tests=(KERNELS,),
    ),
    Mutant(
        "chunks and decodes together have no tree mask",
        "scheduler/execution/batches.py joined",
        "decodes.tree_bits_D",
        "None",
        "a node beside a chunk sees its siblings",
        tests=(FAKE,),
    ),
    Mutant(
        "the fake model takes slots for positions",
        "contexts",
        "positions_N = torch.arange(...) - begin_N",
        "positions_N = slots_N",
        "a path that leaves slots out is read at wrong positions",
        tests=(FAKE,),
    ),
    Mutant(
        "a chain in a graph has the tree mask of the forward before",
        "Lanes.fill",
        "own.tree_mask is not None",
        "decodes.tree_mask is not None",
        "it sees what somebody else saw",
        tests=(GRAPHS,),
    ),
    Mutant(
        "a tree runs in a graph without a tree mask",
        "Graphs.replay",
        "inp.tree_mask is None or lanes.input.tree_mask is not None",
        "True",
        "a node sees its siblings",
        tests=(GRAPHS,),
    ),
    Mutant(
        "V stays where it was",
        "PagedKv.move_tokens",
        "torch.cat(self.token_rows(slots_N))",
        "self.token_rows(slots_N)[0]",
        "a token of the path has the V of another node",
        tests=(PAGES,),
    ),
    Mutant(
        "tokens move one after the other",
        "PagedKv.move_tokens",
        "rows_LRW.index_copy_(...)",
        "[rows_LRW.index_copy_(1, b, rows_LRW[:, a]) for a, b in zip(from_2N.split(1), to_2N.split(1))]",
        "what a token has been moved to is read as what was there before",
        tests=(PAGES,),
    ),
)
