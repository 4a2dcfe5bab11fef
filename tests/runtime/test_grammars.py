import json
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer, decoders, models

from protocol.errors import GrammarFault
from runtime.grammars import Matching, compile_grammar
from runtime.vocabulary import load_vocabulary
from tests.gateway.folders import byte_tokenizer, piece_tokenizer
from tests.grammars import grammar_of, spelt, text_named, vocabulary

NUM_TOKENS, EOS, OTHER_EOS = 100, 99, 98
A, B, C = 1, 2, 3


def begun(*answers: tuple[int, ...], late: bool = False) -> Matching:
    grammar = compile_grammar(text_named(grammar_of(answers)), vocabulary(NUM_TOKENS))
    return grammar.begin((EOS, OTHER_EOS, 1000), late=late)


def allowed(matching: Matching, num_tokens: int = NUM_TOKENS) -> set[int]:
    bits = np.unpackbits(matching.mask().view(np.uint8), bitorder="little")
    return {int(token) for token in np.flatnonzero(bits[:num_tokens])}


def test_only_what_the_grammar_has_may_follow_and_eos_only_at_its_end() -> None:
    matching = begun((A, B), (A, B, C), (B,))
    assert allowed(matching) == {A, B}
    matching.read([A])
    assert allowed(matching) == {B}
    matching.read([B])
    assert allowed(matching) == {C, EOS, OTHER_EOS}
    matching.read([C])
    assert allowed(matching) == {EOS, OTHER_EOS}
    matching.read([OTHER_EOS, A])
    assert matching.is_over and not matching.fault
    assert allowed(matching) == set(range(NUM_TOKENS))


def test_late_eos_comes_where_nothing_else_may() -> None:
    matching = begun((A,), (A, B), late=True)
    matching.read([A])
    assert allowed(matching) == {B}
    matching.read([B])
    assert allowed(matching) == {EOS, OTHER_EOS}


def test_a_wrong_token_is_a_fault_and_leaves_nothing() -> None:
    wrong, early = begun((A, B)), begun((A, B))
    wrong.read([A, C, B])
    assert wrong.fault.startswith("the answer cannot go on in its grammar with token 3") and not allowed(wrong)
    early.read([A, EOS])
    assert early.fault == "the answer has ended before its grammar's end" and not allowed(early)


def test_answers_of_one_grammar_do_not_disturb_each_other() -> None:
    grammar = compile_grammar(text_named(grammar_of([(A, B), (B, C)])), vocabulary(NUM_TOKENS))
    one, other = grammar.begin((EOS,)), grammar.begin((EOS,))
    one.read([A])
    assert (allowed(one), allowed(other)) == ({B}, {A, B})


def test_faults_of_some_do_not_reach_the_masks_of_others() -> None:
    bad, over, good = begun((A, B)), begun((A,)), begun((A, B))
    bad.read([C])
    over.read([A, EOS])
    assert not bad.mask().any() and (over.mask() == -1).all() and good.mask().any()


@pytest.mark.parametrize("text", ["", "no grammar", LLMatcher.grammar_from_regex("(a")])
def test_what_cannot_be_compiled_is_a_fault_in_one_sentence(text: str) -> None:
    with pytest.raises(GrammarFault, match="the grammar cannot be followed: ") as caught:
        compile_grammar(text, vocabulary(NUM_TOKENS))
    assert "\n" not in caught.value.message and len(caught.value.message) < 400


def test_a_vocabulary_spells_tokens_as_the_tokenizer_does(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found, known = load_vocabulary(tmp_path, 1100), tokenizer.get_vocab_size()
    ids = tokenizer.encode('{"name": "Zoë", "numbers": [1, 2.5]}', add_special_tokens=False).ids
    assert found.tokenizer.decode_bytes(ids).decode() == tokenizer.decode(ids)
    special = {token for token, each in tokenizer.get_added_tokens_decoder().items() if each.special}
    special |= set(range(known, 1100))

    eos = min(special)
    matching = compile_grammar(LLMatcher.grammar_from_regex("(.|\n)*"), found).begin((eos,))
    assert allowed(matching, 1100) & special == {eos}
    assert len(allowed(matching, 1100)) > 100


def test_vocabularies_of_pieces_have_bytes_too(tmp_path: Path) -> None:
    piece_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tokenizer = piece_tokenizer()
    found = load_vocabulary(tmp_path, tokenizer.get_vocab_size())
    for token, token_id in tokenizer.get_vocab(with_added_tokens=False).items():
        if token.startswith("<0x"):
            assert found.tokens[token_id] == bytes.fromhex(token[3:5])
        elif not token.startswith("<"):
            assert found.tokens[token_id] == token.replace("\u2581", " ").encode()


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GrammarFault, match=r"no tokenizer\.json"):
        load_vocabulary(tmp_path, 10)
    tokenizer = Tokenizer(models.WordPiece({"a": 0, "##b": 1}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(GrammarFault, match="no bytes of their own"):
        load_vocabulary(tmp_path, 10)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(GrammarFault, match=r"cannot read its tokenizer\.json"):
        load_vocabulary(tmp_path, 10)


def test_forced_text_is_written_as_the_tokenizer_writes_it(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    found = load_vocabulary(tmp_path, byte_tokenizer().get_vocab_size())
    text = "the name of it"
    matching = compile_grammar(LLMatcher.grammar_from_lark(f"start: {json.dumps(text)}"), found).begin((0,))
    ids = byte_tokenizer().encode(text, add_special_tokens=False).ids
    for token in ids:
        assert token in allowed(matching, found.num_tokens)
        matching.read([token])
    assert matching.matcher.is_accepting()


def test_tokens_of_the_tests_are_characters() -> None:
    assert spelt([0, 1]) == "#$"
