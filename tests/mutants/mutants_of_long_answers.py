"""Sabotages of long answers: what the bound on scores counts, what is encoded where, and what answers hold together."""

from tests.mutants.mutant import Mutant

BOUNDS = "tests/gateway/test_prompt_part_bounds.py"
PARTS = "tests/gateway/test_parts.py"
LONG = "tests/gateway/test_answering_long.py"
HELD = "tests/gateway/test_long_answers.py"
TRANSLATE = "tests/gateway/test_translate.py"

LONG_ANSWERS = (
    Mutant(
        "a prompt's scores count once, whatever n is",
        "CompletionRequest.num_prompt_scores",
        "self.num_choices * num_tokens",
        "num_tokens",
        "each choice has a list: 8 KB ask for 140 MB",
        tests=(BOUNDS,),
    ),
    Mutant(
        "native scores of a prompt count once, whatever n is",
        "NativePrompt.num_prompt_scores",
        "self.num_choices * max(0, num_tokens - self.start_len)",
        "max(0, num_tokens - self.start_len)",
        "each choice has its lists",
        tests=(BOUNDS,),
    ),
    Mutant(
        "a part has all that is left",
        "next_part",
        "num_bytes >= PART_BYTES",
        "False",
        "the whole answer is encoded at once, on the loop",
        tests=(PARTS, LONG),
    ),
    Mutant(
        "parts are encoded on the loop",
        "LongAnswers.next_part",
        "await asyncio.to_thread(next_part, blocks)",
        "next_part(blocks)",
        "streams of others stand still meanwhile",
        tests=(HELD,),
    ),
    Mutant(
        "a long answer is encoded to its end although its client has left",
        "WholeAnswer.__call__",
        "part and not has_left()",
        "part",
        "nobody reads it, and others wait",
        tests=(LONG,),
    ),
    Mutant(
        "what is told several times is encoded each time",
        "Kept.__iter__",
        "self._found = found",
        "pass",
        "64 choices take 64 times as long",
        tests=(PARTS, LONG),
    ),
    Mutant(
        "clients that read are cut where memory is short",
        "to_cut",
        "now - each.sends_since >= STALLED_S",
        "True",
        "an answer that another was about to finish is lost",
        tests=(HELD, LONG),
    ),
    Mutant(
        "each token has an event, however long",
        "NativeAnswer._is_due",
        "output.event_bytes > LONG_EVENT",
        "False",
        "the bytes of a stream grow with the square of its tokens",
        tests=(LONG,),
    ),
    Mutant(
        "each prompt has an automaton of its own",
        "Translator._stops",
        "strings not in known",
        "True",
        "800 prompts that share 64 stop strings hold up the loop for two seconds",
        tests=(TRANSLATE,),
    ),
)
