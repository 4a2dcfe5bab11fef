"""What the long programs of tests print: whole lines, at once."""

import sys


def say(line: str) -> None:
    """Prints a line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
