"""Raises the limit of open files of the gateway's process: each client connection is one."""

import resource

SPARE = 256  # for workers, logs and the model folder


def allow_connections(num_connections: int) -> int | None:
    """Raises this process's limit so that `num_connections` fit. Returns None if they do, else the limit that was
    reached."""
    wanted = num_connections + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    reached = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
    return None if reached == wanted else reached
