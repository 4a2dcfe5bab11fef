"""Refuses request ids with the marks of a router that sends the same request to a prefill and a decode server."""

import re
from collections.abc import Iterable
from typing import Any

from gateway.words.complaints import short
from protocol.errors import BadRequest

MARKED_ID = "___(prefill|decode)_addr_"


def refuse_marked(name: str, ids: Iterable[Any]) -> None:
    """BadRequest if a request id has the marks of a router that sends the same request to two servers."""
    for each in ids:
        if isinstance(each, str) and re.search(MARKED_ID, each):
            raise BadRequest(f"{name}: got {short(each)}, which is not supported", param=name)
