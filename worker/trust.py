"""Whom a worker trusts: its keys, what it refuses to bind or to send without them, and why a gateway may refuse it."""

from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from protocol.messages_group import GroupPlace
from runtime.address import is_loopback, refuse_exposed
from runtime.curve import NO_HANDSHAKE, UNKNOWN_KEY
from runtime.keys import ALLOWED, GATEWAY, Keys, read_keys
from runtime.log import get_log
from runtime.settings import WorkerSettings

UNGUARDED = ("nixl", "ray")  # backends whose own connections carry KV

log = get_log("worker")


def why_unanswered(place: GroupPlace, *, has_keys: bool) -> str:
    """Why a gateway that runs may not answer a worker."""
    keys = "the gateway may have --keys; then it answers only workers with keys"
    if has_keys:
        keys = "the gateway may have no --keys, or its list may lack this worker's key"
    if place.size == 1:
        return keys
    return f"the gateway answers once all {place.size} ranks of group {place.group!r} have registered; or {keys}"


def why_refused(keys: Keys | None) -> dict[str, str]:
    """The likely cause, by reason, when a gateway refuses a worker's connection."""
    if keys is None:
        return {NO_HANDSHAKE: "the gateway has keys and this worker has none: pass --keys DIR"}
    return {
        UNKNOWN_KEY: f"the gateway's list lacks this worker's key {keys.public}: put that key's file into {ALLOWED}/ of"
        " the gateway's folder of keys",
        NO_HANDSHAKE: f"the gateway has no keys, or not the key in {GATEWAY} of this worker's folder",
    }


def read_trust(settings: WorkerSettings) -> Keys | None:
    """The worker's keys, if it has any. ConfigError if it would bind a reachable address without keys."""
    keys = None if settings.keys is None else read_keys(settings.keys)
    if settings.role is not Role.UNIFIED:  # a unified worker binds nothing
        refuse_exposed(settings.host, "--host", has_keys=keys is not None, trust_network=settings.trust_network)

    if settings.encrypt_data and keys is None:
        raise ConfigError("--encrypt-data needs --keys DIR: `baton keys new` makes one", param="encrypt-data")
    if settings.encrypt_data and settings.transfer_backend in UNGUARDED:
        raise ConfigError(
            f"--encrypt-data: --transfer-backend {settings.transfer_backend} has connections that Baton cannot encrypt;"
            " expected a backend whose connections it can encrypt, such as zmq",
            param="encrypt-data",
        )

    if settings.role is Role.DECODE and keys is not None and not (settings.encrypt_data or is_loopback(settings.host)):
        log.info("KV from other hosts is not encrypted", host=settings.host, option="--encrypt-data")
    return keys
