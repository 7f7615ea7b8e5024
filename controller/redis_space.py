"""One controller's space in a Redis: a connection, a prefix for all keys, a lease, and errors in our words.

    redis://[user:password@]host[:6379][/db]          plain          unix:///path/redis.sock[?db=0]   on this machine
    rediss://…                                        over TLS       redis+cluster://host[:port]      Redis Cluster
    …?prefix=NAME                                     a prefix other than `hansa`
    …?password_file=PATH                              a file whose first line is the password: not in the process list
    …?ssl_ca_certs=PATH&ssl_certfile=…&ssl_keyfile=…  the authority, and our own certificate if Redis wants one

Keys, all below the prefix P:
    P:lease            who uses this space, with a time to live      P:format        the format of all this
    P:jobs             hash: job -> record
    P:models           set of model keys                             P:journal:JOB   stream: events and receipts
    P:model:KEY        manifest, peaks and the id of the frames      P:snapshot:JOB  newest snapshot of a job's state
    P:frame:ID:N       frame N                                       P:drafts        hash: id -> frames to be swept
"""

import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis import exceptions as ex

from hansa.common.errors import Broken, InvalidInput, Refused, StoreFailed, Taken, Unreachable
from hansa.common.ids import NAME
from hansa.common.rpc.channel import is_loopback

log = logging.getLogger(__name__)

SCHEMES = ("redis", "rediss", "unix", "redis+cluster")
FORMAT = 3  # of everything below the prefix
LEASE = 15.0  # seconds a lease lives without renewal
PATIENCE = 10.0  # seconds for one answer
# Take or prolong the lease: ARGV are we, the time to live, and a holder that is known to be dead. Returns who else has
# it. A lease of our own is prolonged by a command that a full Redis takes, too.
TAKE = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return false
end
if held and held ~= ARGV[3] then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
"""
GIVE_UP = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"
PASSING = re.compile(r"\b(MISCONF|NOREPLICAS|MASTERDOWN|LOADING|READONLY|NOAUTH|NOPERM|BUSY)\b")


def is_redis(url: str) -> bool:
    """Whether a store's URL means Redis."""
    return url.partition(":")[0].lower() in SCHEMES


class RedisSpace:
    """A connection to Redis; thread-safe."""

    def __init__(self, url: str) -> None:
        self.name = _without_password(url)
        try:
            self.client, self.prefix = _connected(url, self.name)
            self.client.ping()
        except (ex.AuthenticationError, ex.AuthenticationWrongNumberOfArgsError, ValueError, TypeError) as error:
            if re.search("HELLO must be called|Authentication required", str(error)):
                raise InvalidInput(f"--store {self.name}: it asks for a password; give ?password_file=PATH") from None
            if isinstance(error, ValueError) and "@" in url:  # its words may be a part of the password
                raise InvalidInput(
                    f"--store {self.name}: this is no URL of a Redis; write characters such as / ? # @ in a password as"
                    " %2F %3F %23 %40, or give ?password_file=PATH"
                ) from None
            raise InvalidInput(f"--store {self.name}: {error}") from None
        except (ex.RedisError, ex.RedisClusterException) as error:
            raise Unreachable(f"--store {self.name}: Redis does not answer: {error}") from None
        self._me = json.dumps(_here() | {"pid": os.getpid(), "token": secrets.token_hex(8)})
        self._held_until: float | None = None  # on the monotonic clock; none: we never took the lease

    def check_format(self, mark: bool) -> None:
        """Refuse what another Hansa has written in a way that we cannot read; `mark` what is new as ours."""
        with self._in_our_words():
            if mark:
                self.client.setnx(self.key("format"), FORMAT)
            held = self.client.get(self.key("format"))
        if held and not held.isdigit():
            raise Broken(f"{self.name}: {self.key('format')} is damaged: it should hold the number {FORMAT}")
        if held and int(held) != FORMAT:
            age = "a newer" if int(held) > FORMAT else "an older"
            raise Refused(
                f"{self.name} (prefix {self.prefix}) was written by {age} Hansa (format {int(held)}, this one knows"
                f" {FORMAT})"
            )

    def key(self, *words: str | int) -> str:
        """Return a key below the prefix."""
        return ":".join((self.prefix, *map(str, words)))

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn Redis's errors that may pass (away, full, loading, busy) into StoreFailed, others into Broken.

        A controller whose lease has run out (it stood still, or Redis was away) takes it again before it goes on: if
        another one has it by now, nothing is written any more.
        """
        if self._held_until is not None and time.monotonic() >= self._held_until:
            try:
                self.acquire()
            except Taken as error:
                raise StoreFailed(str(error)) from None
        with self._in_our_words():
            yield

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except (ex.AuthenticationError, ex.AuthorizationError) as error:
            raise StoreFailed(f"Redis {self.name} refuses: {error}") from None
        except (ex.ConnectionError, ex.TimeoutError, ex.ClusterError, ex.RedisClusterException) as error:
            raise StoreFailed(f"Redis {self.name} does not answer: {error}") from None
        except ex.ResponseError as error:
            text = str(error)  # what a script meets is in the middle of the text, in older Redis
            if isinstance(error, ex.OutOfMemoryError) or "OOM command not allowed" in text:
                raise StoreFailed(f"Redis {self.name} is full; raise its maxmemory or remove other data") from None
            if isinstance(error, ex.ReadOnlyError | ex.NoPermissionError | ex.TryAgainError) or PASSING.search(text):
                raise StoreFailed(f"Redis {self.name} refuses: {error}") from None
            raise Broken(f"Redis {self.name}, prefix {self.prefix}: {error}; is all of it ours?") from None

    def acquire(self) -> None:
        """Take or prolong the lease, or raise Taken naming who has it; a dead holder on this machine does not count."""
        now = time.monotonic()
        held = self._take("")
        if held and _is_dead(_read_holder(held)):
            held = self._take(held)
        if not held:
            self._held_until = now + LEASE
            return
        holder = _read_holder(held)
        with self._in_our_words():
            left = max(self.client.pttl(self.key("lease")), 0) / 1000
        raise Taken(
            f"{self.name} (prefix {self.prefix}) is in use by the controller with pid {holder.get('pid', 'unknown')} on"
            f" {holder.get('host', 'an unknown machine')}; if that one is dead, its lease ends in {left:.0f} s"
        )

    def _take(self, dead: str) -> str:
        with self._in_our_words():
            held: bytes | None = self.client.eval(TAKE, 1, self.key("lease"), self._me, int(LEASE * 1000), dead)
        return held.decode(errors="replace") if held else ""

    def close(self) -> None:
        """Give up the lease and the connection."""
        try:
            self.client.eval(GIVE_UP, 1, self.key("lease"), self._me)
        except (ex.RedisError, ex.RedisClusterException):
            log.debug("the lease could not be given up; it will expire")
        self.client.close()

    def warn_of_settings(self) -> None:
        """Warn a controller of a Redis that may forget; who only reads cannot help it."""
        try:
            policy = self.client.config_get("maxmemory-policy").get("maxmemory-policy", "noeviction")
            append = self.client.config_get("appendonly").get("appendonly", "yes")
        except (ex.RedisError, ex.RedisClusterException, AttributeError):
            return  # not everybody may look
        if policy != "noeviction":
            log.warning("Redis %s evicts keys when it is full (maxmemory-policy %s): set noeviction", self.name, policy)
        if append != "yes":
            log.warning("Redis %s does not keep an append-only file: a restart of it loses models and jobs", self.name)


def _connected(url: str, name: str) -> tuple[Any, str]:
    """Return a client, which has not said anything yet, and the prefix of our keys."""
    if "://" not in url:
        raise ValueError("write redis://…")
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = query.pop("prefix", "hansa")
    if not NAME.fullmatch(prefix):
        raise ValueError(f"prefix {prefix!r} is no name")
    secret = query.pop("password_file", None)
    plain = url.partition("?")[0] + (f"?{urlencode(query)}" if query else "")
    if parts.scheme in ("redis", "rediss") and not re.fullmatch(r"/?\d*", parts.path):
        raise ValueError(f"{parts.path!r} is no database number")
    options: dict[str, Any] = {"socket_timeout": PATIENCE, "socket_connect_timeout": 5}
    if secret is not None:
        options["password"] = _read_password(secret)
    if parts.scheme == "redis" and not is_loopback(f"{parts.hostname or 'localhost'}:{parts.port or 6379}"):
        log.warning("the connection to %s is not encrypted; rediss:// is", name)
    if parts.scheme == "redis+cluster":
        return redis.RedisCluster.from_url(plain.replace("redis+cluster", "redis", 1), **options), prefix
    return redis.Redis.from_url(plain, **options), prefix


def _read_password(path: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--store: password_file {path} cannot be read: {error}") from None
    if not lines or not lines[0]:
        raise InvalidInput(f"--store: password_file {path}: its first line is empty")
    return lines[0]


def _here() -> dict[str, str]:
    """Say where process ids mean what they mean to us: on this machine, until it boots again, inside this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        inside = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        inside = ""
    return {"host": socket.gethostname(), "inside": inside}


def _read_holder(held: str) -> dict[str, Any]:
    """Return what a lease says of its holder; nothing if it is damaged, in which case it has to end by itself."""
    try:
        holder = json.loads(held)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) and isinstance(holder.get("pid"), int) else {}


def _is_dead(holder: dict[str, Any]) -> bool:
    """Whether a holder of the lease is known to be gone: it was here, and its process id is nobody's or ours."""
    if any(holder.get(name) != place for name, place in _here().items()):
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return bool(holder["pid"] == os.getpid())


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    place = rest.partition("?")[0]
    if "@" in rest and "@" not in place:  # perhaps the ? is in a password
        place = "…"
    return f"{scheme}://{place.rpartition('@')[2]}"
