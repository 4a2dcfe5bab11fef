"""docs/operations.md explains every line that a process writes as a warning or error."""

import re

from deploy.model_folder import PROJECT

PAGE = (PROJECT / "docs" / "operations.md").read_text()
ROOMS = "gateway worker prefill decode unified transfer runtime scheduler model deploy".split()
LINE = re.compile(r'\blog\.(?:warning|error|exception)\(\s*"([^"]+)"|\bRefusals\([^,]+, "([^"]+)"')


def test_every_warning_and_error_is_explained() -> None:
    texts = [path.read_text() for room in ROOMS for path in sorted((PROJECT / room).rglob("*.py"))]
    events = {event or kind for text in texts for event, kind in LINE.findall(text)}
    events = {event.partition(":")[0].removesuffix(" that are not supported") for event in events}
    assert len(events) > 20
    assert [event for event in sorted(events) if f"`{event}" not in PAGE] == []
