"""Every error that Baton raises on purpose, in one tree.

    BatonError
    ├── BadRequest            the client's request is wrong                         HTTP 400
    │   ├── UnknownModel      it names a model that is not served                   HTTP 404
    │   └── GrammarFault      no answer can follow its grammar and its other rules  HTTP 400
    ├── Overloaded            a queue or a limit is full; try again                 HTTP 429
    │   └── QueueFull         too many requests wait at a decode or unified worker  HTTP 429
    │       └── PrefillQueueFull  the same, at a prefill worker                     HTTP 429
    ├── Unavailable           no healthy worker can take or finish the request      HTTP 503
    │   ├── WorkerLost        the worker that had the request is gone               HTTP 503
    │   ├── WorkerLeft        the worker that had the request was told to end       HTTP 503
    │   ├── Preemption        it was preempted, because KV memory is full           HTTP 503
    │   └── KvNotDelivered    its KV did not arrive at the decode worker            HTTP 503
    ├── ConfigError           a flag, environment variable or config file is wrong  (exit status 2)
    │   ├── AddressInUse      another process listens where this one should         (exit status 2)
    │   └── MemoryShort       too little memory is free at present                  (exit status 2)
    ├── CheckpointError       a model folder cannot be served                       (exit status 2)
    ├── WireError             a message or frame from a peer is malformed           (counted, dropped)
    │   └── LayoutMismatch    two workers hold KV of different shape or model       (pair refused)
    ├── GroupBroken           the ranks of a group cannot go on together            (the group starts again)
    └── InternalError         our own fault; fails one request                      HTTP 500
        └── LaunchFailed      a worker could not compute it; another worker might   HTTP 500

`gateway/http/errors.py` renders an error as HTTP. `brief` shows a value in a message: short and quickly made, whatever
its size or depth.
"""

from reprlib import Repr
from typing import Any

SHOWN_CHARS = 80


class BatonError(Exception):
    """Root of the tree. `code` is the stable word that messages and HTTP bodies carry."""

    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """`message` is one sentence for a person; `param` names the field at fault, if one is."""
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(BatonError, ValueError):
    """The client's request is wrong. Trying again does not help."""

    code = "bad_request"


class UnknownModel(BadRequest):
    """The request names a model that is not served here."""

    code = "model_not_found"


class GrammarFault(BadRequest):
    """The request's grammar cannot be compiled, or it and the request's other rules leave no token to draw."""

    code = "grammar_fault"


class Overloaded(BatonError):
    """A limit is reached; the same request may succeed later."""

    code = "overloaded"


class QueueFull(Overloaded):
    """Too many requests wait at a decode or unified worker. It has begun nothing; another one may have room."""

    code = "queue_full"


class PrefillQueueFull(QueueFull):
    """Too many requests wait at the prefill worker of a pair."""

    code = "prefill_queue_full"


class Unavailable(BatonError):
    """No healthy worker can take or finish the request now."""

    code = "unavailable"


class WorkerLost(Unavailable):
    """The worker that held the request is gone."""

    code = "worker_lost"


class WorkerLeft(Unavailable):
    """The worker that held the request was told to end, and has ended. Nothing is lost: others take over."""

    code = "worker_left"


class Preemption(Unavailable):
    """A worker had no memory for a choice any more. The choice begins again, with its outputs."""

    code = "retracted"


class KvNotDelivered(Unavailable):
    """The KV of a request did not arrive complete and in time. Another attempt may succeed."""

    code = "kv_not_delivered"


class ConfigError(BatonError, ValueError):
    """A flag, environment variable or config file has a wrong or unknown value."""

    code = "config_error"


class AddressInUse(ConfigError):
    """Another process listens on this address. It may end soon, so a later start may succeed."""

    code = "address_in_use"


class MemoryShort(ConfigError):
    """Too little memory is free for what the settings ask for. Others may free some, so a later start may succeed."""

    code = "memory_short"


class CheckpointError(BatonError, ValueError):
    """A model folder is damaged or asks for something that Baton does not support."""

    code = "checkpoint_error"


class WireError(BatonError, ValueError):
    """A message or frame from a peer is malformed."""

    code = "wire_error"


class LayoutMismatch(WireError):
    """Two workers that should exchange KV hold it in different shapes or for different models."""

    code = "layout_mismatch"


class GroupBroken(BatonError, RuntimeError):
    """The ranks of a group cannot go on together. The whole group ends, and is started again."""

    code = "group_broken"


class InternalError(BatonError):
    """A bug of Baton. It fails the request that met it and no other."""

    code = "internal_error"


class LaunchFailed(InternalError):
    """The forward that computed a request raised. Another worker may compute it."""

    code = "launch_failed"


def _tree(root: type[BatonError]) -> dict[str, type[BatonError]]:
    """By code, the errors above. One that a room adds is its own affair, and may have the code of its parent."""
    kinds = {root.code: root}
    for child in root.__subclasses__():
        if child.__module__ == __name__:
            kinds |= _tree(child)
    return kinds


def error_from_code(code: str, message: str) -> BatonError:
    """The error that a peer named by `code`. An unknown code becomes an InternalError whose message names it."""
    kind = _tree(BatonError).get(code)
    if kind is None or kind is BatonError:
        return InternalError(message if code == InternalError.code else f"{code}: {message}")
    return kind(message)


def as_baton_error(error: Exception) -> BatonError:
    """`error` itself if it is a BatonError; otherwise an InternalError with its type and text."""
    return error if isinstance(error, BatonError) else InternalError(f"{type(error).__name__}: {error}")


def brief(value: Any) -> str:
    """Like repr, cut to about SHOWN_CHARS characters; `...` marks the cut."""
    if isinstance(value, str):
        text = repr(value[: SHOWN_CHARS + 1])
    else:
        maker = Repr()
        maker.maxstring = maker.maxother = maker.maxlong = SHOWN_CHARS
        maker.maxlevel = 3
        text = maker.repr(value)
    return text if len(text) <= SHOWN_CHARS + 2 else f"{text[:SHOWN_CHARS]}..."


def brief_name(name: str) -> str:
    """`name` itself if it is short and printable; otherwise `brief(name)`, with quotes."""
    return name if name.isprintable() and len(name) <= SHOWN_CHARS else brief(name)
