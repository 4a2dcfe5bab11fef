"""Whether a message of the gateway has been lost: those of its messages that carry a number tell how many came before.

Pure. What it does not know: messages, sockets.
"""


class Missed:
    """Since this worker began to join. `total` is how many messages were sent, and never came: also before the first
    that carries a number, for the gateway counts on from what the worker said when it registered."""

    def __init__(self) -> None:
        self.total = 0
        self._ahead = 0  # what we count more than the gateway: words that came before it counted, while we registered

    def numbered(self, num_sent: int, num_received: int) -> None:
        """A message has come that says that it is the gateway's `num_sent`th, and is the `num_received`th to come."""
        ahead = num_received - num_sent
        if ahead < self._ahead:
            self.total += self._ahead - ahead
        self._ahead = ahead
