"""The gateway process: builds its parts from the settings and serves until it is stopped."""

import asyncio
import contextlib
import resource
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import uvicorn

from gateway.app.app import build_app
from gateway.app.metrics_page import add_control
from gateway.app.role_metrics import add_roles
from gateway.generation.grammars.checks import GrammarChecks
from gateway.generation.grammars.trial_child import TrialChild, trial_command
from gateway.generation.tallies import Metrics
from gateway.generation.translate import Translator
from gateway.http.protocol import BoundedHttp
from gateway.routing.control import Control
from gateway.routing.control_socket import ControlSocket
from gateway.routing.membership import Membership
from gateway.routing.retries import RetryRules
from gateway.serving.admission import Admission
from gateway.serving.service import ModelNames, Service
from gateway.text.answer_format import OFF, AnswerFormat, answer_format
from gateway.text.chat_template import ChatTemplates, read_template, read_template_sources
from gateway.text.model_folder import model_facts, read_model_folder
from gateway.text.plain_marks import PlainMarks
from gateway.text.template_messages import ArgumentsForm
from gateway.text.tokenizer import TextTokenizer, load_tokenizer
from gateway.words.limits import Limits
from protocol.errors import ConfigError, brief
from protocol.prefixes import HASH_KEY_BYTES
from runtime.address import listen, refuse_exposed, split_endpoint
from runtime.clock import Clock
from runtime.keys import read_api_keys, read_keys
from runtime.log import get_log
from runtime.model_config import ModelBasics, tokenizer_digest
from runtime.settings import GatewaySettings

GRACE_S = 1  # for responses in flight when the gateway stops
BACKLOG = 2048
UVICORN_TICK_S = 0.1
TICKS_PER_DAY = 864_000
log = get_log("gateway")
SPARE = 256  # for workers, logs and the model folder


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers. It stops without delay. `on_turn` is called several times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()
        self.on_turn: Callable[[], None] = lambda: None
        self.is_leaving = False

    def leave(self) -> None:
        """Leaves its port, and ends each connection once what was asked on it is answered."""
        self.is_leaving = True
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()

    @property
    def is_done(self) -> bool:
        """Whether no client is left."""
        return not self.server_state.connections and not self.server_state.tasks

    def stop(self) -> None:
        """Ends `serve`."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Ticks until told to stop."""
        counter = 0
        while not await self.on_tick(counter):
            self.on_turn()
            counter = (counter + 1) % TICKS_PER_DAY
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), UVICORN_TICK_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing: the gateway handles signals itself."""
        yield


def check_tokenizer(tokenizer: TextTokenizer | None, texts: Path, vocab_size: int | None) -> None:
    """ConfigError if the `--tokenizer` folder has no tokenizer, or one with token ids beyond the model's."""
    if tokenizer is None:
        raise ConfigError(f"--tokenizer: folder {brief(str(texts))} has no tokenizer.json", param="tokenizer")
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"--tokenizer: {brief(str(texts))} has token ids up to {tokenizer.vocab_size - 1}, expected ids below"
            f" {vocab_size}, the model's vocab_size",
            param="tokenizer",
        )


def template_sources(settings: GatewaySettings, texts: Path) -> dict[str, str]:
    """The texts of the templates of a folder, by name. The file of `--chat-template` is the default one."""
    sources = read_template_sources(texts)
    if settings.chat_template is not None:
        sources["default"] = read_template(Path(settings.chat_template))
    return sources


def chat_templates(
    sources: Mapping[str, str],
    tokenizer: TextTokenizer | None,
    refused: str | None,
    arguments: ArgumentsForm = "object",
) -> ChatTemplates:
    """The templates that have these texts. `refused`, `arguments`: see ChatTemplates."""
    if tokenizer is None:
        return ChatTemplates(sources, {}, refused=refused)
    plain = PlainMarks(tokenizer.special_texts)
    return ChatTemplates(sources, tokenizer.special.texts, arguments, plain, refused)


def find_format(settings: GatewaySettings, templates: ChatTemplates, tokenizer: TextTokenizer | None) -> AnswerFormat:
    """How answers are read, told in the log. ConfigError if the settings name an unknown format."""
    answers = answer_format(
        lambda messages, tools: templates.render(messages, None, {}, tools),
        lambda text: None if tokenizer is None else tokenizer.added_id(text),
        settings.tool_call_parser,
        settings.reasoning_parser,
    )
    log.info(
        "format of answers",
        tool_calls=answers.calls or OFF,
        reasoning=answers.reasoning or OFF,
        arguments=answers.arguments,
        one_token_markers=" ".join(answers.markers.by_id.values()) or OFF,
    )
    return answers


class Gateway:
    """All parts of one gateway, its sockets bound. Build it, then `await serve()` once.

    | state   | a signal                  | every answer has ended | the bound is over         |
    |---------|---------------------------|------------------------|---------------------------|
    | SERVES  | `leave`: LEAVES its port  |                        |                           |
    | LEAVES  | `stop`: the rest fails    | `stop`                 | `stop`: the rest fails    |
    """

    def __init__(self, settings: GatewaySettings, clock: Clock) -> None:
        self._clock = clock
        self._drain_timeout_s = settings.drain_timeout_s
        self._ends_at = 0.0  # when it leaves: the end of its bound
        self.on_leaving: Callable[[int, float], None] = lambda _requests, _bound_s: None
        folder = read_model_folder(Path(settings.model))
        basics = folder.basics
        texts = folder.path if settings.tokenizer is None else Path(settings.tokenizer)
        tokenizer = load_tokenizer(texts)
        if settings.tokenizer is not None:
            check_tokenizer(tokenizer, texts, basics.vocab_size)

        sources, refused = template_sources(settings, texts), _refused_chats(basics, settings)
        templates = chat_templates(sources, tokenizer, refused)
        answers = find_format(settings, templates, tokenizer)
        if answers.arguments != "object":
            templates = chat_templates(sources, tokenizer, refused, answers.arguments)
        lengths = [length for length in (settings.context_length, basics.context_length) if length is not None]
        if tokenizer is None:
            log.warning("the model folder has no tokenizer.json: only token ids can be served", model=settings.model)
        if folder.not_applied:
            log.warning("ignored settings of generation_config.json that are not supported", **folder.not_applied)

        keys = None if settings.keys is None else read_keys(settings.keys, for_gateway=True)
        host = split_endpoint(settings.control, "control").host
        refuse_exposed(host, "--control", has_keys=keys is not None, trust_network=settings.trust_network)
        facts = model_facts(folder.path)
        if not facts:
            log.warning("config.json names no architecture: workers are not compared with it", model=settings.model)

        tokenizer_sum = "" if settings.tokenizer is not None else tokenizer_digest(folder.path)
        membership = Membership(
            secrets.randbits(62),
            launch_deadline_s=settings.launch_deadline_s,
            silence_limit_s=settings.silence_limit_s,
            tokenizer=tokenizer_sum,
            facts=facts,
            hash_key=secrets.token_bytes(HASH_KEY_BYTES) if settings.pairing == "prefix_aware" else b"",
        )
        rules = RetryRules(settings.max_attempts, settings.retry_wait_s)
        self._control_socket = ControlSocket(settings.control, keys)
        num_tokens = basics.vocab_size or (tokenizer.vocab_size if tokenizer is not None else 0)
        self._trials = TrialChild(trial_command(texts, num_tokens))
        grammars = GrammarChecks(self._trials.check, clock, self._trials.prepare)
        model_limits = Limits(context_length=min(lengths, default=None), vocab_size=basics.vocab_size)
        self.control = Control(
            self._control_socket, clock, settings.pairing, rules, membership, model_limits, grammars.blame
        )

        try:
            self._http_socket = listen(settings.host, settings.port, BACKLOG)
            self._http_socket.setblocking(False)
        except ConfigError:
            self._control_socket.close()
            raise

        names = ModelNames(settings.served_model_name, settings.model_as_typed)
        requests = self.control.dispatch.requests
        metrics = Metrics(names.first)
        add_control(metrics.registry, self.control, self._control_socket.refused)
        add_roles(metrics.registry, self.control, clock)

        self.service = Service(
            names=names,
            model=str(folder.path),
            texts=str(texts.absolute()),
            control=self.control,
            translator=Translator(folder, tokenizer, templates, settings.logprobs_mode, answers),
            metrics=metrics,
            clock=clock,
            started_at=int(datetime.now(UTC).timestamp()),
            http_limits=settings.limits,
            admission=Admission(
                settings.limits.max_choices_in_flight,
                settings.limits.max_body_bytes,
                lambda: requests.num_choices,
            ),
            grammars=grammars,
            api_keys=() if settings.api_key_file is None else read_api_keys(settings.api_key_file),
            allowed_origins=settings.allowed_origins,
        )

        config = uvicorn.Config(
            build_app(self.service),
            http=partial(  # type: ignore[arg-type]  # uvicorn only calls it
                BoundedHttp,
                settings.limits,
                lambda reason: metrics.slow_readers_cut.labels(reason).inc(),
                metrics.count_response,
            ),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # no line for each client that does not speak HTTP
            access_log=False,
            server_header=False,
            proxy_headers=False,  # client addresses are not used
            backlog=BACKLOG,
            # uvicorn also takes fractions
            timeout_keep_alive=settings.limits.keep_alive_timeout_s,  # type: ignore[arg-type]
            timeout_graceful_shutdown=GRACE_S,
        )

        self._server = Server(config)
        metrics.http_connections.set_function(lambda: len(self._server.server_state.connections))

    @property
    def control_endpoint(self) -> str:
        """The endpoint to which workers connect."""
        return self._control_socket.endpoint

    @property
    def url(self) -> str:
        """The URL to which clients connect."""
        host, port = self._http_socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def prepare_trials(self) -> None:
        """Starts the process that tries grammars, so that the first grammar does not wait for it. Without a tokenizer
        every grammar is refused, which it may do later."""
        if self.service.translator.takes_text:
            self.service.grammars.warm_up()

    async def serve(
        self, on_ready: Callable[[], None] = lambda: None, say_alive: Callable[[float], None] = lambda _: None
    ) -> None:
        """Serves until `stop`. Calls `on_ready` once clients and workers can connect, and `say_alive` with the time
        whenever the loop has turned."""
        self._server.on_turn = lambda: self._turn(say_alive)
        self.control.start()
        try:
            serving = asyncio.create_task(self._server.serve(sockets=[self._http_socket]))
            on_ready()
            await serving
        finally:
            self.control.close()
            self._http_socket.close()
            self._trials.stop()
            self.service.grammars.close(self._trials.close)

    def _turn(self, say_alive: Callable[[float], None]) -> None:
        now = self._clock.now()
        say_alive(now)
        if self._server.is_leaving:
            self._server.leave()  # a connection may have been made just when the port was left
            if self._server.is_done or now >= self._ends_at:
                self.stop()

    def leave(self) -> None:
        """Leaves the port at once, and ends `serve` when all that clients have asked is answered, or its time is over.
        A second call ends it at once."""
        if self._server.is_leaving or not self._server.started or not self._drain_timeout_s:
            self.stop()
            return
        num_requests = len(self.control.dispatch.requests)
        log.info("leaving", requests=num_requests, at_most_s=self._drain_timeout_s)
        self._ends_at = self._clock.now() + self._drain_timeout_s
        self._server.leave()
        self.on_leaving(num_requests, self._drain_timeout_s)

    def stop(self) -> None:
        """Ends `serve`, even before it has begun: requests in flight fail and connections are closed."""
        self.control.dispatch.stop("the gateway is stopping")
        self._server.stop()

    def leave_on_signals(self) -> None:
        """SIGINT and SIGTERM call `leave`. Call it on the running loop of the main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.leave)


def allow_connections(num_connections: int) -> int | None:
    """Raises this process's limit of open files so that `num_connections` fit, each of which is an open file. Returns
    None if they do, else the limit that was reached."""
    wanted = num_connections + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    reached = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
    return None if reached == wanted else reached


def _refused_chats(basics: ModelBasics, settings: GatewaySettings) -> str | None:
    """Why no chat of this model is answered, whatever its own templates; None: chats are answered."""
    if not basics.speaks_harmony or settings.chat_template is not None:
        return None
    return "chats of this model have the harmony format, which is not parsed yet"
