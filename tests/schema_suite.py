"""The public JSON Schema test suite: schemas, and values of which each is valid or is not.

The package jsonschema brings the suite with its sources, which `make test-slow` downloads in the pinned version.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jsonschema_rs

FOLDER: Final = Path(os.environ.get("JSON_SCHEMA_SUITE", Path(sys.prefix) / "json-schema-suite"))
DRAFTS: Final = {  # by folder of the suite: the $schema of its schemas
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}
# Groups whose rules the suite itself calls optional, and a grammar does not keep: what ECMA calls white space, and what
# is in a string.
OPTIONAL: Final = (
    "ecmascript-regex: ECMA 262 \\S matches everything but whitespace",
    "content: validation of string-encoded content based on media type",
    "content: validation of binary string-encoding",
    "content: validation of binary-encoded media type documents",
)


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


def follows(text: str, group: Group) -> bool:
    """Whether a text is JSON that is valid in a group. ValidationError or ValueError says why not. jsonschema_rs reads
    patterns as ECMA does, and checks formats."""
    value = json.loads(text, parse_float=_finite)
    if group.where not in OPTIONAL:
        jsonschema_rs.validator_for(group.schema, validate_formats=True).validate(value)
    return True


def _finite(text: str) -> float:
    """1e999 is a number in JSON, but not one that jsonschema_rs takes."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))
