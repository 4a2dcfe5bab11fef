"""Sabotages of how schemas and grammars of clients are made exact for llguidance."""

from tests.mutants.mutant import Mutant

BOUNDS = "tests/gateway/test_grammar_bounds.py"
PATTERNS = "tests/gateway/test_grammar_patterns.py"
NAMES = "tests/gateway/test_grammar_names.py"
REFERENCES = "tests/gateway/test_grammar_references.py"

SCHEMAS = (
    Mutant(
        "exclusive bounds stay as they are",
        "strict_schema",
        "mapped(mapped(schema, _strict), exact_bounds(_fractions(schema)))",
        "mapped(schema, _strict)",
        "a number above 0 and up to 0.5 may be 0",
        tests=(BOUNDS,),
    ),
    Mutant(
        "a bound is compared with the fractions of its own schema alone",
        "strict_schema",
        "exact_bounds(_fractions(schema))",
        "(lambda each: exact_bounds(frozenset(fractions_in(each)))(each))",
        "a bound and the other one in allOf let the bound itself through",
        tests=(BOUNDS,),
    ),
    Mutant(
        "the bound of draft 4 stays where it is",
        "exact_bounds.changed",
        "inclusive if schema.get(exclusive) is True else exclusive",
        "exclusive",
        "a bound that a true beside it makes exclusive is allowed",
        tests=(BOUNDS,),
    ),
    Mutant(
        "a number next to a bound has as many digits as a double",
        "_next_to",
        "round(bound + away * 10.0**-places, places)",
        "bound + away * 1e-14",
        "llguidance loses the last ones, and so the bound",
        tests=(BOUNDS,),
    ),
    Mutant(
        "patterns stay as they are",
        "_with_spelt_patterns",
        'schema = {**schema, "pattern": spelt_pattern(pattern)}',
        "pass",
        "what excludes quotes would allow them, escaped",
        tests=(PATTERNS,),
    ),
    Mutant(
        "patterns of names stay as they are",
        "_with_spelt_patterns",
        "{spelt_pattern(name): each for __name, __each in named.items()}",
        "named",
        "a name could have a quote that its pattern excludes",
        tests=(PATTERNS,),
    ),
    Mutant(
        "a control character outside of classes stays",
        "_escape",
        "(end, NOTHING) if is_unspelt else __rest",
        "__rest",
        "it would stand for no character at all",
        tests=(PATTERNS,),
    ),
    Mutant(
        "a class in a class is read as Rust does",
        "_class_end",
        'if pattern[place] == "[": ...',
        "",
        "a pattern would follow another dialect than ECMA's",
        tests=(PATTERNS,),
    ),
    Mutant(
        "flags of Rust's dialect are taken",
        "spelt_pattern",
        "_check_group(pattern, place)",
        "",
        "a pattern would ignore its white space",
        tests=(PATTERNS,),
    ),
    Mutant(
        "one of several parts that leads to itself is enough",
        "check_references",
        "any(id(each) not in waiting for __each in need)",
        "all(id(each) not in waiting for __each in need)",
        "a schema with another way out would be refused",
        tests=(REFERENCES,),
    ),
    Mutant(
        "a rule of GBNF keeps the name start",
        "_lark",
        "_without_start(source)",
        "source",
        "it would be taken for a second root",
        tests=("tests/gateway/test_grammar_texts.py",),
    ),
    Mutant(
        "patterns of names that properties have stay",
        "gateway/grammar_schemas.py _strict",
        "with_own_names(with_exact_format(schema))",
        "with_exact_format(schema)",
        "an answer would fail behind a comma",
        tests=(NAMES,),
    ),
    Mutant(
        "what a pattern says of a name is lost with it",
        "with_own_names",
        '{"allOf": [*([named[name]] if name in named else []), *own]}',
        "named.get(name, True)",
        "a property would follow its own schema alone",
        tests=(NAMES,),
    ),
    Mutant(
        "a required name that no pattern names is allowed",
        "with_own_names",
        "name in extra and not own",
        "False",
        "a name that nothing in the schema names would be a property",
        tests=(NAMES,),
    ),
    Mutant(
        "a bar in brackets is an outermost one",
        "_alternatives",
        'each == "|" and not depth and not is_class',
        'each == "|"',
        "a pattern would count as one that allows more",
        tests=(NAMES,),
    ),
    Mutant(
        "references are not followed",
        "strict_schema",
        "check_references(schema)",
        "",
        "an answer would fail in its middle",
        tests=(REFERENCES,),
    ),
)
