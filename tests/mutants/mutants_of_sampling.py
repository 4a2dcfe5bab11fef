"""Sabotages of how rows are drawn: what draws on a device, and what log-probabilities are of."""

from tests.mutants.mutant import Mutant

TRITON = "tests/model/test_sampler_triton.py"
ALLOWED = "tests/model/test_sampler_allowed.py"
LOGPROBS = "tests/model/test_logprobs.py"

SAMPLING = (
    Mutant(
        "a GPU without Triton draws with its kernels",
        "draws_of",
        "device.type == 'cuda' and find_spec('triton') is not None",
        "device.type == 'cuda'",
        "every launch fails there",
        tests=(TRITON,),
    ),
    Mutant(
        "the draws that a caller names are not used",
        "sample_scored",
        "draws or draws_of(__device)",
        "draws_of(__device)",
        "make gpu compares the kernels with themselves",
        tests=(TRITON,),
    ),
    Mutant(
        "grammars are left out of a draw",
        "sample_scored",
        "draws.only_allowed(logits_LV, s.allowed)",
        "logits_LV",
        "answers leave their grammar",
        tests=(ALLOWED,),
    ),
    Mutant(
        "log-probabilities of what a token was drawn from are those of other rows",
        "_logprobs",
        "drawn.logits_of(asked.rows_N)",
        "drawn.logits_of(asked.rows_N.flip(0))",
        "a request reads another's",
        tests=(LOGPROBS, ALLOWED),
    ),
)
