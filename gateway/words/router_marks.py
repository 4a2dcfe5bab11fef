"""Refuses request ids with the marks of a router that sends the same request to a prefill and a decode server."""

import re
from collections.abc import Iterable
from typing import Any

from gateway.words.complaints import short
from protocol.errors import BadRequest

MARKED_ID = "___(prefill|decode)_addr_"


def refuse_marked(name: str, ids: Iterable[Any]) -> None:
    """BadRequest if a request id has the marks of a router that sends the same request to two servers."""
    for marked in ids:
        if isinstance(marked, str) and re.search(MARKED_ID, marked):
            raise BadRequest(f"{name}: got {short(marked)}, which is not supported", param=name)
