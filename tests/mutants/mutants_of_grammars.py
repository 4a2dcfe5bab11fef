"""Sabotages of answers that follow a grammar."""

from tests.mutants.mutant import Mutant

MASKS = "tests/model/test_grammars.py"
STATES = "tests/scheduler/execution/test_grammars.py"
SCHEMAS = "tests/gateway/test_grammar_schemas.py"
SCHEDULES = "tests/explore/test_grammars.py"

GRAMMARS = (
    Mutant(
        "EOS is allowed too early",
        "_put_eos",
        "may_end and not __late",
        "True",
        "an answer would end before its grammar does",
        tests=(MASKS,),
    ),
    Mutant(
        "masks are one step late",
        "Masking.over",
        "answer.unread += __tokens",
        "answer.unread[:] = []",
        "a mask that lacks the last token allows what fits before it",
        tests=(STATES,),
    ),
    Mutant(
        "masks do not wait for the launch before",
        "Masking.start",
        "self._future is None and __ready",
        "self._future is None",
        "they lack the token in flight",
        tests=(STATES,),
    ),
    Mutant(
        "an answer's state is not rebuilt from its outputs",
        "AnswerGrammars._begin",
        "list(draw.outputs)",
        "[]",
        "behind a hand-over or a retry it would begin anew",
        tests=(STATES,),
    ),
    Mutant(
        "a row has the state of the row beside",
        "Masking.over",
        "runs[place]",
        "runs[place - 1]",
        "one request reads another's tokens",
        tests=(STATES,),
    ),
    Mutant(
        "tokens are accepted twice",
        "Masking._make",
        "answer.unread.clear()",
        "",
        "what was read once is read again with the next mask",
        tests=(STATES,),
    ),
    Mutant(
        "a choice that comes back reads the outputs that it draws again",
        "draw_of",
        "req.outputs[: req.num_sampled]",
        "req.outputs",
        "with several draft layers the last outputs are drawn once more",
        tests=("tests/scheduler/planning/test_req.py",),
    ),
    Mutant(
        "a row's new owner goes on with the old one's state",
        "AnswerGrammars._begin",
        "generation != draw.generation",
        "generation < 0",
        "rows are used again",
        tests=(STATES,),
    ),
    Mutant(
        "proposals are made for an answer in a grammar",
        "Planner._seat",
        "holding.has_draft = False",
        "",
        "only the first token of a launch has a mask",
        tests=(SCHEDULES,),
    ),
    Mutant(
        "answers may have days that do not exist",
        "gateway/grammar_schemas.py _strict",
        "with_exact_format(schema)",
        "schema",
        "the 29th of February of 2023 parses as no date",
        tests=("tests/gateway/test_grammar_formats.py",),
    ),
    Mutant(
        "names of an answer may be spelt with escapes",
        "strict_schema",
        "ESCAPES",
        "ESCAPES + 'u'",
        "what is spelt past a property's name passes its schema, too",
        tests=(SCHEMAS,),
    ),
    Mutant(
        "a schema may have llguidance's own options",
        "strict_schema",
        "OPTIONS in schema",
        "False",
        "one of them has keywords ignored that are not supported",
        tests=(SCHEMAS,),
    ),
    Mutant(
        "names that count once are counted twice",
        "_check_least",
        "least > most",
        "False",
        "a name may be written twice in an answer, and a parser takes one",
        tests=(SCHEMAS,),
    ),
    Mutant(
        "long grammars stay as long as short ones",
        "Grammars._is_full",
        "sum(self._num_chars.values()) > MAX_KNOWN_CHARS",
        "False",
        "64 hostile grammars would take a worker's memory",
        tests=("tests/scheduler/planning/test_grammars.py",),
    ),
    Mutant(
        "grammars are checked on the loop",
        "GrammarChecks.text_of",
        "await asyncio.to_thread(self.check, wanted)",
        "self.check(wanted)",
        "all streams of a gateway would stand still while one grammar is compiled",
        tests=("tests/gateway/test_grammars.py",),
    ),
    Mutant(
        "a worker that has learnt a grammar sleeps",
        "OverlapLoop.step",
        "progressed |= self._planner.grammars.num_learnt > num_learnt",
        "",
        "a request with a new grammar waits for a heartbeat",
        tests=("tests/worker/test_learning.py",),
    ),
)
