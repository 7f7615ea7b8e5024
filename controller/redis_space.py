"""One controller's space in a Redis: a connection, a prefix for all keys, a lease, and errors in our words.

    redis://[user:password@]host[:6379][/db]          plain          unix:///path/redis.sock[?db=0]   on this machine
    rediss://…                                        over TLS       redis+cluster://host[:port]      Redis Cluster
    …?prefix=NAME                                     a prefix other than `hansa`
    …?password_file=PATH                              a file whose first line is the password: not in the process list
    …?ssl_ca_certs=PATH&ssl_certfile=…&ssl_keyfile=…  the authority, and our own certificate if Redis wants one

Keys, all below the prefix P:
    P:lease            who uses this space, with a time to live      P:jobs          hash: job -> record
    P:models           set of model keys                             P:journal:JOB   stream: events and receipts
    P:model:KEY        manifest, peaks and the id of the frames      P:snapshot:JOB  newest snapshot of a job's state
    P:frame:ID:N       frame N                                       P:drafts        hash: id -> frames to be swept
"""

import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis import exceptions as ex

from hansa.common.errors import InvalidInput, StoreFailed, Taken, Unreachable
from hansa.common.ids import NAME
from hansa.common.rpc.channel import is_loopback

log = logging.getLogger(__name__)

SCHEMES = ("redis", "rediss", "unix", "redis+cluster")
LEASE = 15.0  # seconds a lease lives without renewal
PATIENCE = 10.0  # seconds for one answer
RENEW = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
"""


def is_redis(url: str) -> bool:
    """Whether a store's URL means Redis."""
    return urlsplit(url).scheme in SCHEMES


class RedisSpace:
    """A connection to Redis; thread-safe."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self.prefix = query.pop("prefix", "hansa")
        if not NAME.fullmatch(self.prefix):
            raise InvalidInput(f"--store: prefix {self.prefix!r} is no name")
        secret = query.pop("password_file", None)
        self.name = _without_password(url)
        plain = url.partition("?")[0] + (f"?{urlencode(query)}" if query else "")
        if parts.scheme in ("redis", "rediss") and not re.fullmatch(r"/?\d*", parts.path):
            raise InvalidInput(f"--store {self.name}: {parts.path!r} is no database number")
        options: dict[str, Any] = {"socket_timeout": PATIENCE, "socket_connect_timeout": 5}
        if secret is not None:
            options["password"] = _read_password(secret)
        if parts.scheme == "redis" and not is_loopback(f"{parts.hostname or 'localhost'}:{parts.port or 6379}"):
            log.warning("the connection to %s is not encrypted; rediss:// is", self.name)
        try:
            if parts.scheme == "redis+cluster":
                self.client: Any = redis.RedisCluster.from_url(plain.replace("redis+cluster", "redis", 1), **options)
            else:
                self.client = redis.Redis.from_url(plain, max_connections=64, **options)
            with self.answering():
                self.client.ping()
        except (ValueError, ex.AuthenticationError, ex.AuthenticationWrongNumberOfArgsError) as error:
            raise InvalidInput(f"--store {self.name}: {error}") from None
        except (StoreFailed, ex.RedisError) as error:
            raise Unreachable(f"--store {self.name}: {error}") from None
        self._me = json.dumps({"host": socket.gethostname(), "pid": os.getpid()})
        self._warn_of_settings()

    def key(self, *words: str | int) -> str:
        """Return a key below the prefix."""
        return ":".join((self.prefix, *map(str, words)))

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn Redis's errors that may pass (away, full, loading, read-only) into StoreFailed."""
        try:
            yield
        except ex.AuthenticationError:
            raise
        except ex.OutOfMemoryError:
            raise StoreFailed(f"Redis {self.name} is full; raise its maxmemory or remove other data") from None
        except (ex.ConnectionError, ex.TimeoutError, ex.ClusterDownError) as error:
            raise StoreFailed(f"Redis {self.name} does not answer: {error}") from None
        except (ex.BusyLoadingError, ex.ReadOnlyError, ex.TryAgainError) as error:
            raise StoreFailed(f"Redis {self.name} is not ready: {error}") from None
        except ex.ResponseError as error:
            if str(error).startswith(("MISCONF", "NOREPLICAS", "MASTERDOWN")):
                raise StoreFailed(f"Redis {self.name} refuses to write: {error}") from None
            raise

    def acquire(self) -> None:
        """Take the lease or raise Taken naming who has it; a holder on this machine that is dead does not count."""
        with self.answering():
            held = self.client.eval(RENEW, 1, self.key("lease"), self._me, int(LEASE * 1000))
            if not held:
                return None
            holder = json.loads(held)
            if holder["host"] == socket.gethostname() and not _alive(holder["pid"]):
                self.client.delete(self.key("lease"))
                return self.acquire()
            left = max(self.client.pttl(self.key("lease")), 0) / 1000
            raise Taken(
                f"{self.name} (prefix {self.prefix}) is in use by the controller with pid {holder['pid']} on"
                f" {holder['host']}; if that one is dead, its lease ends in {left:.0f} s"
            )

    def renew(self) -> None:
        """Prolong the lease; raise Taken if another controller has it by now."""
        self.acquire()

    def close(self) -> None:
        """Give up the lease and the connection."""
        try:
            if self.client.get(self.key("lease")) == self._me.encode():
                self.client.delete(self.key("lease"))
        except ex.RedisError:
            log.debug("the lease could not be given up; it will expire")
        self.client.close()

    def _warn_of_settings(self) -> None:
        try:
            policy = self.client.config_get("maxmemory-policy").get("maxmemory-policy", "noeviction")
            append = self.client.config_get("appendonly").get("appendonly", "yes")
        except (ex.RedisError, AttributeError):
            return  # not everybody may look
        if policy != "noeviction":
            log.warning("Redis %s evicts keys when it is full (maxmemory-policy %s): set noeviction", self.name, policy)
        if append != "yes":
            log.warning("Redis %s does not keep an append-only file: a restart of it loses models and jobs", self.name)


def _read_password(path: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--store: password_file {path} cannot be read: {error}") from None
    if not lines or not lines[0]:
        raise InvalidInput(f"--store: password_file {path}: its first line is empty")
    return lines[0]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
