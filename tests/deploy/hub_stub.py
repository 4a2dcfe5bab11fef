"""A hub on a loopback port, as far as huggingface_hub asks for models: names, revisions, lists of files, files."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final

COMMIT: Final = "c0ffee" * 6 + "abcd"
OLD_COMMIT: Final = "0ddba11" * 5 + "01234"


@dataclass
class StubHub:
    """`models`: the files of each model, by name. `revisions`: commits by branch and tag. Models in `gated` and
    `private` need this token. `asked`: method and path of each request; `tokens`: what they were sent with."""

    models: Mapping[str, Mapping[str, bytes]]
    revisions: Mapping[str, str] = field(default_factory=lambda: {"main": COMMIT, "v1": OLD_COMMIT})
    gated: str = ""
    private: str = ""
    token: str = "hf_right"
    broken_file: str = ""  # it ends in the middle
    failing: int = 0  # the status with which it answers every request
    url: str = ""
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def answer(self, path: str, token: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        parts = path.partition("?")[0].strip("/").split("/")
        is_api = parts[0] == "api"
        if self.failing:
            return self.failing, {}, b""
        if len(parts) < 5 or (is_api and parts[1] != "models"):
            return 404, {}, b""  # what else the client asks a hub for
        name = "/".join(parts[2:4] if is_api else parts[:2])
        kind, revision, *rest = parts[4:] if is_api else parts[2:]
        commit = self.revisions.get(revision, revision if revision in self.revisions.values() else None)
        if name not in self.models or (name == self.private and token != self.token):
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if name == self.gated and token != self.token:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        if commit is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""

        files = self.models[name]
        if kind == "revision":
            return (
                200,
                {},
                json.dumps({"id": name, "sha": commit, "siblings": [{"rfilename": f} for f in files]}).encode(),
            )
        if kind == "tree":
            rows = [
                {"type": "file", "path": path, "size": len(raw), "oid": hashlib.sha1(raw).hexdigest()}
                for path, raw in files.items()
            ]
            return 200, {}, json.dumps(rows).encode()
        raw = files["/".join(rest)]
        return 200, {"ETag": f'"{hashlib.sha1(raw).hexdigest()}"', "X-Repo-Commit": commit}, raw

    def files_sent(self) -> set[str]:
        """The files that were asked for."""
        return {line.rpartition("/resolve/")[2].partition("/")[2] for line in self.asked if "/resolve/" in line}


@contextmanager
def running_hub(hub: StubHub) -> Iterator[StubHub]:
    """The hub, which listens."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._send(with_body=False)

        def do_GET(self) -> None:
            self._send(with_body=True)

        def _send(self, *, with_body: bool) -> None:
            token = self.headers.get("authorization", "").removeprefix("Bearer ")
            hub.asked.append(f"{self.command} {self.path}")
            hub.tokens.add(token)
            status, headers, body = hub.answer(self.path, token)
            self.send_response(status)
            for header, value in headers.items():
                self.send_header(header, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                is_cut = bool(hub.broken_file) and self.path.endswith(hub.broken_file)
                self.wfile.write(body[: len(body) // 2] if is_cut else body)
                self.close_connection = is_cut

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
