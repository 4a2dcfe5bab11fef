from scheduler.plan import ForgetGrammar, GrammarLearnt, LearnGrammar
from scheduler.planning.grammars import MAX_KNOWN, MAX_KNOWN_CHARS, Grammars


def make() -> tuple[Grammars, list[LearnGrammar | ForgetGrammar]]:
    sent: list[LearnGrammar | ForgetGrammar] = []
    return Grammars(sent.append), sent


def test_a_grammar_is_learnt_once() -> None:
    grammars, sent = make()
    assert grammars.is_learnt("") and not grammars.fault("")
    for _ in range(2):
        grammars.ask("a", "text", set)
        assert sent == [LearnGrammar("a", "text")] and not grammars.is_learnt("a")
    grammars.learnt(GrammarLearnt("a"))
    assert grammars.is_learnt("a") and not grammars.fault("a")
    grammars.ask("b", "other", set)
    grammars.learnt(GrammarLearnt("b", "why"))
    assert grammars.is_learnt("b") and grammars.fault("b") == "why"


def test_grammars_without_requests_are_forgotten_the_oldest_first() -> None:
    grammars, sent = make()
    for number in range(MAX_KNOWN):
        grammars.ask(f"g{number}", "", set)
        grammars.learnt(GrammarLearnt(f"g{number}"))
    grammars.ask("g0", "", set)
    grammars.ask("new", "", lambda: {"g1", "g3"})
    assert sent[-1] == ForgetGrammar("g2")
    grammars.ask("newer", "", lambda: {f"g{number}" for number in range(MAX_KNOWN)})
    assert sent[-1] == LearnGrammar("newer", ""), "all others are in use, or not learnt yet"
    assert not grammars.is_learnt("g2") and grammars.is_learnt("g1")
    grammars.learnt(GrammarLearnt("g2"))
    assert not grammars.is_learnt("g2"), "it was forgotten meanwhile"


def test_long_grammars_without_requests_are_forgotten_sooner() -> None:
    grammars, sent = make()
    text = "x" * (MAX_KNOWN_CHARS // 4)
    for number in range(4):
        grammars.ask(f"g{number}", text, set)
        grammars.learnt(GrammarLearnt(f"g{number}"))
    assert not any(isinstance(operation, ForgetGrammar) for operation in sent)
    grammars.ask("new", text + text, lambda: {"g1"})
    assert sent[-2:] == [ForgetGrammar("g0"), ForgetGrammar("g2")]
    grammars.ask("short", "", set)
    assert sent[-1] == LearnGrammar("short", ""), "there is room again"
