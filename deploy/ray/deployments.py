"""The deployments: a gateway, and one for each role. Each replica holds the process of one gateway or one worker.

    worker's replica --join, each second--> gateway's replica      by the gateway's handle, wherever it is now

Tokens never cross Serve: clients talk to the gateway process, workers to it and to each other.
"""

import asyncio
import json
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from deploy.layout import as_large, at_addresses
from deploy.machine import check_port_free
from deploy.options import Rules
from deploy.ray.arguments import DEPLOYMENT_OF, GATEWAY, Arguments
from deploy.ray.flags import read_flags
from deploy.ray.holder import RUNNING, Errand, NotServing, Overtaken, Ready
from deploy.ray.meeting import Announcement, Members, Welcome
from deploy.ray.replica import Replica, as_endpoint, reachable
from deploy.ray.scaling import Latencies, figures_of
from deploy.ray.share import with_share
from deploy.serve import lone_gateway, lone_worker, pages_of
from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from runtime.address import split_endpoint
from runtime.clock import MonotonicClock
from runtime.keys import read_api_keys
from runtime.layered_config import Config

JOIN_S: Final = 1.0  # between two announcements
ANSWER_S: Final = 5.0  # for the gateway's answer to one, and for the controller's
# Of a call that another one may follow. KeyError: Serve does not know the deployment yet, or any more.
HOPELESS: Final = (RayError, RayServeException, TimeoutError, KeyError)
SPARE_S: Final = 15.0  # of Serve's patience, beyond what the processes may take
_COMMON: Final[dict[str, Any]] = {
    "user_config": {},
    "ray_actor_options": {"num_cpus": 1},
    "health_check_period_s": 2,
    "health_check_timeout_s": 10,
    "graceful_shutdown_wait_loop_s": 0.1,  # Serve sleeps so long before it says that a replica should leave
    "max_ongoing_requests": 1000,
    "logging_config": {"enable_access_log": False},  # no line for each announcement
}


@serve.deployment(name=GATEWAY, **_COMMON)
class Gateway(Replica):
    """Holds the gateway process, and the list of those who may connect to it."""

    def __init__(self, arguments: str, *_workers: Any) -> None:
        super().__init__(arguments)
        self._clock = MonotonicClock()
        self._members = Members(self.facts, self.keys.public)
        self._control = as_endpoint(self.place.node, self.arguments.control_port)
        self._http = self._api_key = ""
        self._figures: Callable[[str], Mapping[str, float]] = lambda _name: {}
        self._looking: asyncio.Task[None] | None = None
        self.keys.trust(self.keys.public, self._members.keys())

    async def start_with(self, written: dict[str, Any]) -> None:
        """See Replica. The control address stays the same."""
        config = self._config(written)
        try:
            if not self._http.endswith(f":{config['port']}"):  # else the process that leaves has it
                check_port_free(config["host"], config["port"])
            spec = await asyncio.to_thread(lone_gateway, config)
        except ConfigError as error:
            raise config.as_written(error) from error
        ready = await self.run(
            Errand((spec,), config.make(Rules), lambda ready: [at_addresses(spec, *addresses(ready))])
        )
        self._http, self._control = addresses(ready)
        file = config.path("api-key-file")
        self._api_key = read_api_keys(file)[0] if file else ""
        if self._looking is None:
            self._looking = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        """Asks the gateway for what Serve's autoscaling needs, each second, if it is in use."""
        latencies = Latencies()
        while True:
            if self._members.scale():
                try:
                    workers, page = await asyncio.to_thread(read_load, self._http, self._api_key)
                    percentiles = latencies.take(page, self._clock.now())
                    self._figures = partial(figures_of, workers, percentiles)
                except (OSError, ValueError):  # it is being started again
                    self._figures = lambda _name: {}
            await asyncio.sleep(JOIN_S)

    def _config(self, written: dict[str, Any]) -> Config:
        given = {"control": self._control, "keys": str(self.keys.folder), "drain-timeout": str(self.arguments.drain_s)}
        if "host" not in written:
            given["host"] = self.place.node
        given |= self.arguments.of_model
        return read_flags(GATEWAY, written, given)

    async def join(self, announcement: str) -> str:
        """Called by a worker's replica. Returns a Welcome as JSON, without an address while the gateway is starting."""
        serves = self._http and self.holder.state in RUNNING
        control = self._control if serves else ""
        welcome = self._members.answer(announcement, self._clock.now(), control, self._figures)
        self.keys.trust(self.keys.public, self._members.keys())
        return welcome.to_json()

    async def part(self, name: str) -> None:
        """Called by a worker's replica that leaves."""
        self._members.forget(name)
        self.keys.trust(self.keys.public, self._members.keys())

    async def status(self) -> str:
        """For `baton ray status`, as JSON."""
        members = [json.loads(member.to_json()) for member in self._members.told(self._clock.now())]
        place, state = self.place, self.holder.state.value
        own = {"name": place.name, "node": place.node, "state": state, "refused": self.refused}
        http = reachable(self._http, place.node)
        return json.dumps({"http": http, "gateway": own, "members": members})

    async def __del__(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await self.end()


def read_load(http: str, api_key: str) -> tuple[list[dict[str, Any]], str]:
    """(/workers, /metrics) of a gateway. OSError or ValueError if it does not answer so."""
    pages = []
    for path in ("/workers", "/metrics"):
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        with urllib.request.urlopen(urllib.request.Request(http + path, headers=headers), timeout=ANSWER_S) as answer:
            pages.append(answer.read().decode())
    return json.loads(pages[0]), pages[1]


class Addresses(NamedTuple):
    """Where a gateway listens: for clients, and for workers."""

    http: str
    control: str


def addresses(ready: Ready) -> Addresses:
    """Those that the gateway process tells."""
    (event,) = ready.values()
    return Addresses(str(event["http"]), str(event["control"]))


class Worker(Replica):
    """Holds a worker: one process, or one for each rank of a group. Follows the gateway wherever it goes."""

    role: ClassVar[Role]

    def __init__(self, arguments: str) -> None:
        super().__init__(arguments)
        self._written: dict[str, Any] = {}
        self._listed = Welcome()  # the last list
        self._welcome = Welcome()  # the gateway at which the processes were started last
        self._may_start = asyncio.Event()
        self._scales = False  # Serve has asked for figures
        self._following: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None

    async def start_with(self, written: dict[str, Any]) -> None:
        """See Replica. Waits until the gateway has told its address, and all members know this one."""
        read_flags(DEPLOYMENT_OF[self.role], written)
        before, self._written = self._written, written
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        allowed = asyncio.create_task(self._may_start.wait())
        await asyncio.wait({allowed, self._following}, return_when=asyncio.FIRST_COMPLETED)
        if not allowed.done():
            allowed.cancel()
            await self._following  # raises why
        try:
            await self._start()
        except ConfigError:
            self._written = before
            raise

    def check_health(self) -> None:
        """See Replica."""
        super().check_health()
        for task in (self._following, self._moving):
            if task is not None and task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise RuntimeError(f"node {self.place.node}: {error}")

    async def _follow(self) -> None:
        """Announces this worker each second, and starts its processes again when the gateway has moved. What it raises,
        check_health tells."""
        while True:
            welcome = await self._meet()
            moved = (welcome.control, welcome.gateway_key) != (self._welcome.control, self._welcome.gateway_key)
            if welcome.control and welcome.settled and moved:
                self._welcome = welcome
                if self._may_start.is_set():
                    self.holder.console.note(f"the gateway has moved to {welcome.control}")
                    self._moving = asyncio.create_task(self._move())
                self._may_start.set()
            await asyncio.sleep(JOIN_S)

    async def _meet(self) -> Welcome:
        """Announces this worker, and trusts whom the answer lists. The answer is empty if the gateway does not answer,
        or has no address yet. ConfigError if this node may not join."""
        place = self.place
        announcement = Announcement(
            name=place.name,
            public_key=self.keys.public,
            node=place.node,
            state=self.holder.state.value,
            facts=self.facts,
            gateway_key=self._listed.gateway_key,
            knows=tuple(self._listed.keys.values()),
            scales=self._scales,
            refused=self.refused,
        )
        try:
            gateway = serve.get_deployment_handle(GATEWAY, serve.get_replica_context().app_name)
            welcome = Welcome.from_json(await _answer(gateway.join.remote(announcement.to_json())))
        except HOPELESS:  # it is being replaced, or Ray's head is away: the processes go on
            return Welcome()
        if welcome.refused:
            raise ConfigError(welcome.refused)
        self.keys.trust(welcome.gateway_key, welcome.keys)
        self._listed = welcome
        return welcome

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve if the file has an autoscaling_config. The figures of scaling.py; none while the gateway
        does not tell them."""
        self._scales = True
        return dict(self._listed.figures)

    async def _move(self) -> None:
        """Starts the processes again at another gateway. No stream of the one before can be finished, so a
        worker that it has lost ends at once."""
        with suppress(NotServing, Overtaken):  # the holder tells the first; the second is a change of flags
            await self._start()

    async def _start(self) -> None:
        config = self._config()
        try:
            specs = await asyncio.to_thread(lone_worker, config, self.holder.console, self.place.name)
        except ConfigError as error:
            raise config.as_written(error) from error
        errand = Errand(specs, config.make(Rules), lambda ready: as_large(specs, pages_of(ready)))
        await self.run(errand)

    def _config(self) -> Config:
        deployment, written = DEPLOYMENT_OF[self.role], self._written
        ranks = int(read_flags(deployment, written)["dp-size"])
        given = {
            "role": self.role.value,
            "gateway": self._welcome.control,
            "worker-id": self.place.name,
            "host": self.place.node,
            "keys": str(self.keys.folder),
            "drain-timeout": str(self.arguments.drain_s),
            **with_share(written, self.place.share, ranks),
        }
        given |= self.arguments.of_model
        return read_flags(deployment, written, given)

    async def __del__(self) -> None:
        """Leaves. If all roles leave at once, the gateway finishes its streams first, with the help of this worker."""
        for task in (self._following, self._moving):
            if task is not None:
                task.cancel()
        if self._welcome.control and await _application_ends():
            with suppress(TimeoutError):
                await asyncio.wait_for(_end_of(self._welcome.control), self.arguments.drain_s + ANSWER_S)
        await self.end()
        with suppress(*HOPELESS):
            gateway = serve.get_deployment_handle(GATEWAY, serve.get_replica_context().app_name)
            await _answer(gateway.part.remote(self.place.name))


async def _answer(response: Any) -> Any:
    async def awaited() -> Any:
        return await response

    return await asyncio.wait_for(awaited(), ANSWER_S)


async def _application_ends() -> bool:
    """Whether Serve ends the whole application, not this replica alone. False if Serve does not say."""
    name = serve.get_replica_context().app_name
    try:
        status = await asyncio.wait_for(asyncio.to_thread(serve.status), ANSWER_S)
    except HOPELESS:
        return False
    application = status.applications.get(name)
    return application is None or application.status == "DELETING"


async def _end_of(endpoint: str) -> None:
    """Returns when nobody listens at `endpoint` any more."""
    host, port = split_endpoint(endpoint, "control")
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except OSError:
            return
        with suppress(OSError):
            await reader.read()  # until the gateway ends, or cuts off whoever says nothing
        writer.close()


@serve.deployment(name=DEPLOYMENT_OF[Role.PREFILL], **_COMMON)
class Prefill(Worker):
    """Holds a prefill worker."""

    role = Role.PREFILL


@serve.deployment(name=DEPLOYMENT_OF[Role.DECODE], **_COMMON)
class Decode(Worker):
    """Holds a decode worker."""

    role = Role.DECODE


@serve.deployment(name=DEPLOYMENT_OF[Role.UNIFIED], **_COMMON)
class Unified(Worker):
    """Holds a unified worker."""

    role = Role.UNIFIED


_GATEWAY: Final[Any] = Gateway
_WORKERS: Final[Mapping[Role, Any]] = {Role.PREFILL: Prefill, Role.DECODE: Decode, Role.UNIFIED: Unified}


def build(arguments: Arguments) -> Any:
    """The application of these arguments."""
    text = arguments.to_json()
    of_gateway = arguments.drain_s + SPARE_S
    of_worker = 2 * arguments.drain_s + 2 * SPARE_S  # first the gateway, then itself
    workers = [_WORKERS[role].options(graceful_shutdown_timeout_s=of_worker).bind(text) for role in arguments.roles]
    return _GATEWAY.options(graceful_shutdown_timeout_s=of_gateway).bind(text, *workers)
