"""Makes the formats of dates, times, UUIDs and names of hosts in a JSON schema exact, for a grammar.

llguidance allows the 29th of February in every year, the year 0000, and second 60 in every minute. RFC 3339 allows
second 60 only at a leap second, and most readers of dates take none of the three. It allows names of hosts, and of
people before an @, of any length, and labels such as `ab--c`, which are kept for names in other scripts. Numbers in a
duration have any number of digits, though few readers take more than 999,999,999 days. Schemas beside the format forbid
all this. It does not know formats for UUIDs of one version, which Pydantic writes: `uuid4` is `uuid` with a pattern.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_CENTURIES: Final = (
    "([02468][48]|[13579][26]|[2468]0)00"  # in which the last year of a century is a leap year; not 0000
)
_LEAP_YEAR: Final = f"([0-9]{{2}}(0[48]|[2468][048]|[13579][26])|{_CENTURIES})"
_YEAR: Final = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY: Final = f"({_YEAR}-(0[13-9]|1[0-2]|02-([01]|2[0-8])).*|{_LEAP_YEAR}-02-29.*)"
_SECOND: Final = "[0-9]{2}:[0-9]{2}:[0-5].*"


def _label(most: int) -> str:
    """A pattern of one label of a host's name: at most `most` characters, without `--` behind the second."""
    end, inner = "[A-Za-z0-9]", "[A-Za-z0-9-]"
    return f"({end}|{end}{inner}{{0,2}}{end}|{end}{inner}({end}{inner}|-{end}){inner}{{0,{most - 5}}}{end})"


_SIGN: Final = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_PERSON: Final = rf"({_SIGN}{{1,64}}|{_SIGN}{{1,15}}(\.{_SIGN}{{1,15}}){{1,3}})"  # at most 64, without quotes
# At most 253, since it is either few labels or short ones: a length beside a pattern would be too much for llguidance.
_SHORT_HOST: Final = rf"({_label(63)}(\.{_label(63)}){{0,2}}|{_label(30)}(\.{_label(30)}){{3,7}})"
EXACT: Final[Mapping[str, Sequence[dict[str, Any]]]] = {  # what strings of a format follow besides
    "date": [{"pattern": f"^{_DAY}$"}],
    "time": [{"pattern": f"^{_SECOND}$"}],
    "date-time": [{"pattern": f"^{_DAY}$"}, {"pattern": f"^.{{11}}{_SECOND}$"}],
    "duration": [{"pattern": "^(P|T|[0-9]{1,6}[YMWDHS])*$"}],
    "hostname": [{"pattern": rf"^{_label(63)}(\.{_label(63)})*$", "maxLength": 253}],
    "email": [{"pattern": f"^{_PERSON}@{_SHORT_HOST}$"}],
}

_UUIDS: Final = frozenset(f"uuid{version}" for version in (1, 3, 4, 5, 6, 7, 8))


def with_exact_format(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose own `format` allows what exists. The schemas in it are the caller's."""
    name, others = schema.get("format"), schema.get("allOf", [])
    if isinstance(name, str) and name in _UUIDS and isinstance(others, list):
        return {**schema, "format": "uuid", "allOf": [*others, {"pattern": f"^.{{14}}{name[-1]}.{{4}}[89abAB]"}]}
    if not isinstance(name, str) or name not in EXACT or not isinstance(others, list):
        return schema
    return {**schema, "allOf": [*others, *EXACT[name]]}
