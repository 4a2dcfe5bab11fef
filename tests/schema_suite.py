"""The public JSON Schema test suite: schemas, and values of which each is valid or is not.

The package jsonschema brings the suite with its sources, which `make test-slow` downloads in the pinned version.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jsonschema

FOLDER: Final = Path(os.environ.get("JSON_SCHEMA_SUITE", Path(sys.prefix) / "json-schema-suite"))
DRAFTS: Final = {  # by folder of the suite: the $schema of its schemas
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}


@dataclass(frozen=True)
class Group:
    """A schema, with its `values` and whether each is valid. `where`: file and description."""

    where: str
    schema: Any
    values: Sequence[tuple[Any, bool]]


def groups(draft: str) -> Iterator[Group]:
    """All of a draft, the optional ones too. Each schema that is an object names its draft."""
    folder = FOLDER / "tests" / draft
    assert folder.is_dir(), f"no JSON Schema test suite in {FOLDER}: make test-slow downloads it"
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text()):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DRAFTS[draft], **schema}
            values = [(test["data"], test["valid"]) for test in group["tests"]]
            yield Group(f"{path.stem}: {group['description']}", schema, values)


def follows(text: str, schema: Any, draft: str) -> bool:
    """Whether a text is JSON of this schema, by the rules of its draft. ValidationError or ValueError says why not."""
    own = jsonschema.validators.validator_for({"$schema": DRAFTS[draft]})
    validator = jsonschema.validators.extend(own, {"pattern": _pattern, "patternProperties": _pattern_properties})
    validator(schema, format_checker=own.FORMAT_CHECKER).validate(json.loads(text))
    return True


# jsonschema's own keywords read patterns as Python does. In ECMA's, \w and \d are letters and digits of ASCII.
def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, 0 if "\\s" in pattern.lower() else re.ASCII) is not None


def _pattern(validator: Any, pattern: str, value: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(value, "string") and not _matches(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
    for pattern, schema in patterns.items() if validator.is_type(value, "object") else ():
        for name in value:
            if _matches(pattern, name):
                yield from validator.descend(value[name], schema, path=name, schema_path=pattern)
