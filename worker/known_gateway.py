"""What a worker process knows of its gateway, through all of its lives: which one it is, and which flushes it has seen.

    Welcome from        | the number of flushes       | then
    --------------------|-----------------------------|------------------------------------------------------------
    the first gateway   | any                         | it is noted: nothing is cached yet
    the same gateway    | as many as were seen        | what is cached stays
    the same gateway    | others: some were missed    | what is cached is flushed, before anybody may find it
    another gateway     | any                         | the same: it may have flushed before this worker joined

Pure.
"""

from dataclasses import dataclass

from protocol.messages_gateway import RegisterAgain, Welcome


@dataclass
class KnownGateway:
    """The last gateway that has answered. `instance` is 0 before any has."""

    instance: int = 0
    num_flushes: int = 0  # FlushCache of this gateway for this worker's role

    def is_another(self, message: Welcome | RegisterAgain) -> bool:
        """Whether another gateway has answered than the last time."""
        return self.instance not in (0, message.gateway_instance)

    def answered(self, message: Welcome | RegisterAgain) -> bool:
        """Notes the answer. Whether a flush may have been missed."""
        must_flush = self.is_another(message)
        is_first, self.instance = self.instance == 0, message.gateway_instance
        if isinstance(message, Welcome):
            must_flush |= not is_first and message.num_flushes != self.num_flushes
            self.num_flushes = message.num_flushes
        return must_flush

    def flushed(self) -> None:
        """FlushCache has come."""
        self.num_flushes += 1
