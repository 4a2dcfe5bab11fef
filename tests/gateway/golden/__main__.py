"""`python -m tests.gateway.golden` keeps what the gateway answers now. Look at the diff: each line is a client's."""

import asyncio
import sys

from tests.gateway.golden.asks import FLEETS
from tests.gateway.golden.exchange import KEPT, answers_of, write


async def main() -> None:
    """Asks all fleets, and writes the file."""
    answers = {name: answer for fleet in FLEETS for name, answer in (await answers_of(fleet)).items()}
    write(answers)
    sys.stdout.write(f"{len(answers)} answers in {KEPT}\n")


if __name__ == "__main__":
    asyncio.run(main())
