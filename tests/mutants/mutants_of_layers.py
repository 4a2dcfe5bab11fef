"""Sabotages of drafts of several layers, of which each proposes another token."""

from tests.mutants.mutant import Mutant

UNIFIED = "tests/unified/test_worker_speculation.py"
HANDED_OVER = "tests/handoff/test_speculation.py"
LAYERS = "tests/scheduler/speculation/test_layers.py"
SPILLS = "tests/scheduler/planning/test_spills.py"

DRAFT_LAYERS = (
    Mutant(
        "the tokens of a draft layer are not shifted",
        "scheduler/speculation/layers.py _read",
        "tokens_BX[:, layer : layer + size]",
        "tokens_BX[:, :size]",
        "every layer but the first reads the token before its own",
        tests=(UNIFIED,),
    ),
    Mutant(
        "the features of several draft layers are one position late",
        "scheduler/speculation/layers.py extend_layers",
        "past.hidden_BJE[:, 1:]",
        "past.hidden_BJE[:, :-1]",
        "KV of the slots that are written again is that of other slots",
        tests=(UNIFIED,),
    ),
    Mutant(
        "what several draft layers have stashed is that of the launch before",
        "scheduler/speculation/layers.py extend_layers",
        "kept_B[:, None] + torch.arange(...)",
        "torch.arange(num_layers).expand(len(kept_B), -1)",
        "the next launch begins at positions before",
        tests=(UNIFIED,),
    ),
    Mutant(
        "a draft layer reads no proposal",
        "scheduler/speculation/layers.py _read",
        "layer + 1 < num_layers",
        "False",
        "its own proposals are those of another text",
        tests=(UNIFIED,),
    ),
    Mutant(
        "slots without a feature are written",
        "scheduler/speculation/layers.py _read",
        "window.input.slots_T.masked_fill(has_none_T, 0)",
        "window.input.slots_T",
        "a choice that came back from host memory loses KV that was final",
        tests=(LAYERS,),
    ),
    Mutant(
        "a middle chunk takes one prompt token for all draft layers",
        "scheduler/speculation/layers.py after_chunks",
        "(*chunk.ids, *chunk.ahead)",
        "(*chunk.ids, *chunk.ahead[:1])",
        "the KV of the chunk's last slots is that of another text",
        tests=(UNIFIED,),
    ),
    Mutant(
        "the last chunk of a prompt may be smaller than a draft needs",
        "plan_chunks",
        "0 < left - take < last",
        "False",
        "it begins with features that another launch has computed",
        tests=("tests/scheduler/planning/test_chunks.py",),
    ),
    Mutant(
        "the tokens before the last one are not handed over",
        "join_of",
        "(*(0,) * (num_before - len(last)), *last)",
        "(0,) * num_before",
        "a draft of several layers begins with other tokens",
        tests=(HANDED_OVER,),
    ),
    Mutant(
        "with several draft layers a choice goes on from its last output",
        "Spills.copy_out",
        "max(self._book.lookahead - 1, 0)",
        "0",
        "KV that depends on proposals stays",
        tests=(SPILLS,),
    ),
    Mutant(
        "outputs that are drawn once more are sent",
        "Spills.take_redrawn",
        "run[repeated:]",
        "run",
        "the client gets tokens twice",
        tests=(SPILLS,),
    ),
    Mutant(
        "last slots shared between choices as if one layer looked ahead",
        "allocate_choices",
        "settled_pages(prompt_len, page_size, lookahead)",
        "settled_pages(prompt_len, page_size, min(lookahead, 1))",
        "the KV of one choice was computed with tokens that another has drawn",
        tests=(HANDED_OVER,),
    ),
    Mutant(
        "a hit that keeps slots of all draft layers but the first",
        "PrefixCache.__init__",
        "self._ahead_bytes = lookahead * ID_BYTES",
        "self._ahead_bytes = min(lookahead, 1) * ID_BYTES",
        "their KV was computed with another prompt's tokens",
        tests=(HANDED_OVER,),
    ),
)
