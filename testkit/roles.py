"""Which role a process of Baton has, by its command line."""

import json
from collections.abc import Sequence


def role_of(words: Sequence[str]) -> str:
    """`prefill`, `decode` or `unified`; of another Python module its package, such as `gateway`; else the program."""
    if "-m" not in words:
        return words[0].rsplit("/", 1)[-1] if words else ""
    module = words[words.index("-m") + 1]
    if module != "deploy.worker":
        return module.split(".")[0]
    role: str = json.loads(words[words.index("--settings") + 1])["role"]
    return role
