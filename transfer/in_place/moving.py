"""A device copy that has begun: it cannot be called back, only waited for."""

from typing import Protocol


class Moving(Protocol):
    """Work that was given to a device."""

    @property
    def done(self) -> bool:
        """Whether it has completed: it reads and writes nothing any more, and its writes are visible everywhere."""
        ...

    def wait(self) -> None:
        """Blocks until `done`."""
        ...

    @property
    def total(self) -> int:
        """The device checksum of what was moved or read. Valid once `done`."""
        ...
