"""Starts the gateway process: `python -m gateway --settings JSON [--status-fd N]`.

The exit status is 2 when it cannot start.
"""

from runtime.process_life import die_with_parent, quick_imports

die_with_parent()  # before the imports below: they take seconds

with quick_imports():
    import gc
    import sys
    from collections.abc import Sequence

    import uvloop

    from gateway.app.launcher_news import LauncherNews
    from gateway.process import SPARE, Gateway, allow_connections
    from protocol.errors import BatonError
    from runtime.clock import MonotonicClock
    from runtime.installation import check_imports
    from runtime.log import get_log, start_log
    from runtime.process_life import EXIT_CONFIG, StatusPipe
    from runtime.settings import GatewaySettings, read_arguments

SWITCH_S = 0.0002  # how long a thread that parses a long body may hold the GIL while the loop waits
GC_YOUNG = 20_000  # new objects before the garbage collector runs; a token makes about a dozen, none of them in a cycle


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until a signal stops it. Returns the exit status."""
    status = StatusPipe()
    start_log("gateway")

    try:
        settings, status_fd = read_arguments(GatewaySettings, argv)
        start_log("gateway", settings.log_level)
        status = StatusPipe(status_fd)
        check_imports()
        status.loading("tokenizer")
        _make_room(settings.limits.max_connections)
        gateway = Gateway(settings, MonotonicClock())
    except BatonError as error:
        status.failed(error.message, code=error.code)
        get_log("gateway").error("cannot start", why=error.message)
        return EXIT_CONFIG

    gc.collect()
    gc.freeze()  # objects of the start live for ever: never scan them again
    gc.set_threshold(GC_YOUNG)
    sys.setswitchinterval(SWITCH_S)

    news = LauncherNews(sys.stdin.fileno(), gateway.control.presence.heard) if status_fd is not None else None
    uvloop.run(_run(gateway, status, news))
    return 0


def _make_room(max_connections: int) -> None:
    most = allow_connections(max_connections)
    if most is not None:
        get_log("gateway").warning(
            "the system allows too few open files", files=most, max_connections=max_connections, spare=SPARE
        )


async def _run(gateway: Gateway, status: StatusPipe, news: LauncherNews | None) -> None:
    gateway.leave_on_signals()
    if news is not None:
        news.start()
    gateway.on_leaving = status.leaving
    log = get_log("gateway")

    def ready() -> None:
        status.ready(http=gateway.url, control=gateway.control_endpoint)
        gateway.prepare_trials()
        log.info("ready", http=gateway.url, control=gateway.control_endpoint)

    await gateway.serve(ready, status.alive)
    log.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
