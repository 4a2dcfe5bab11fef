"""Work that a device was given: it cannot be called back, only waited for."""

from typing import Protocol


class Moving(Protocol):
    """Work that was given to a device, and cannot be called back."""

    @property
    def done(self) -> bool:
        """Whether it has completed: nothing of it reads or writes any more, and what it wrote is there for all."""
        ...

    def wait(self) -> None:
        """Blocks until `done`."""
        ...

    @property
    def total(self) -> int:
        """The device checksum of what was moved or read, once `done`."""
        ...
