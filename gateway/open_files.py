"""How many files the gateway's process may have open: each client's connection is one.

What it does not know: which connections there are.
"""

import resource

SPARE = 256  # for workers, logs, the model folder


def allow_connections(num_connections: int) -> int | None:
    """Raises this process's limit so that so many clients fit; the limit, where the system allows no more and they do
    not fit, else None."""
    wanted = num_connections + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    reached = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
    return None if reached == wanted else reached
