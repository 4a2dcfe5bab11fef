"""What of a node Ray gave a replica, and the flags of `baton worker` that follow. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.errors import ConfigError
from runtime.settings import MAX_PER_MACHINE


@dataclass(frozen=True)
class Share:
    """Cores and GPUs of one replica, and of its node in all."""

    cpus: float
    gpus: float
    node_cpus: float
    node_gpus: float

    def check(self, deployment: str) -> None:
        """Raises ConfigError for a claim that a worker cannot use. A replica without any claim is refused: Ray ends
        nodes that nobody claims a part of."""
        if self.gpus != int(self.gpus):
            raise ConfigError(
                f"ray_actor_options of {deployment}: got num_gpus {self.gpus:g}, expected whole GPUs", param="num_gpus"
            )
        if not self.cpus and not self.gpus:
            raise ConfigError(
                f"ray_actor_options of {deployment}: got num_cpus 0 and num_gpus 0, expected a claim of either",
                param="num_cpus",
            )

    def flags(self, ranks: int) -> dict[str, str]:
        """What a worker of so many ranks is told of this share: its threads, and by how many the node's memory is
        divided, if all of it were given away like this."""
        shares = self.node_gpus // self.gpus if self.gpus else self.node_cpus // (self.cpus or 1)
        workers = min(MAX_PER_MACHINE, ranks * max(1, int(shares)))
        given = {"threads": str(max(1, int(self.cpus) // ranks)), "workers-on-host": str(workers)}
        if self.gpus:
            given["workers-on-gpu"] = str(-(-ranks // int(self.gpus)))
        return given


def with_share(written: Mapping[str, object], share: Share, ranks: int) -> dict[str, str]:
    """The flags of the share that `user_config` does not decide itself."""
    names = {name.replace("_", "-") for name in written}
    return {name: text for name, text in share.flags(ranks).items() if name not in names}
