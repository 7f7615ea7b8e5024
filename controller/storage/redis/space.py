"""One controller's space in a Redis: a connection, a prefix for all keys, fenced writes, errors of our own.

    redis://[user:password@]host[:6379][/db]          plain
    rediss://…                                        over TLS
    unix:///path/redis.sock[?db=0]                    on this machine
    redis+cluster://host[:port]                       Redis Cluster
    …?prefix=NAME                                     a prefix other than `hansa`
    …?password_file=PATH                              a file whose first line is the password
    …?ssl_ca_certs=PATH&ssl_certfile=…&ssl_keyfile=…  the authority; our certificate if Redis wants one

Keys, all below the prefix P. {T} is a hash tag, 0 to 63, which is computed from the words after it: keys with
the same tag are on the same node of a cluster, and a write touches only one tag.

    P:{0}:lease            which controller uses this space, with a time to live
    P:{T}:fence            epoch and token of the controller that may write keys with this tag
    P:{T}:format           the format of all this
    P:{T}:jobs             hash: job -> record
    P:{T}:summaries        hash: ended job -> summary
    P:{T}:journal:JOB      stream: events and receipts
    P:{T}:snapshot:JOB     newest snapshot of its state
    P:{T}:models           set of model keys
    P:{T}:model:KEY        manifest, peaks, id of frames
    P:{T}:frame:ID:N       frame N
    P:{T}:drafts           hash: id -> frames to be swept
"""

import logging
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis import exceptions as ex

from hansa.common.process import faults
from hansa.common.rpc.channel import is_loopback
from hansa.common.values.errors import Broken, InvalidInput, Refused, StoreFailed, Taken, Unreachable
from hansa.common.values.ids import NAME
from hansa.controller.storage.redis.lease import GUARD, TAGS, Lease, LeaseLost, LeaseTaken, Script

log = logging.getLogger(__name__)

SCHEMES = ("redis", "rediss", "unix", "redis+cluster")
FORMAT = 10  # of everything below the prefix
PATIENCE = 10.0  # seconds to wait for one reply
AT_ONCE = 500  # keys that one command removes
WRITE = Script(GUARD + "return redis.pcall(ARGV[2], KEYS[2], unpack(ARGV, 3))")
REMOVE = Script(GUARD + "return redis.pcall('UNLINK', unpack(KEYS, 2))")
FENCED = re.compile(r"\bFENCED (.*)")  # a refusal of the guard, with the value of the fence
PASSING = re.compile(r"\b(MISCONF|NOREPLICAS|MASTERDOWN|LOADING|READONLY|NOAUTH|NOPERM|BUSY)\b")


UNUSABLE = (ex.AuthenticationError, ex.AuthenticationWrongNumberOfArgsError, ValueError, TypeError)


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
        except UNUSABLE as error:
            raise InvalidInput(f"--store {self.name}: {_advice(error, url)}") from None
        except (ex.RedisError, ex.RedisClusterException) as error:
            raise Unreachable(f"--store {self.name}: Redis does not answer: {error}") from None
        self._lease = Lease(self.client, f"{self.prefix}:{{0}}:lease", self._fence)

    def check_format(self, mark: bool) -> None:
        """Refuse data of another format; `mark` a new space with ours."""
        with self.answering():
            former = self.client.get(f"{self.prefix}:format")  # its key before keys had tags
            if former and former.isdigit():
                raise self._of_another(int(former))
            if mark:
                self.write("SETNX", self.key("format"), FORMAT)
            number = self.client.get(self.key("format"))
        if number and not number.isdigit():
            raise Broken(f"{self.name}: {self.key('format')} is damaged: it should hold the number {FORMAT}")
        if number and int(number) != FORMAT:
            raise self._of_another(int(number))

    def _of_another(self, number: int) -> Refused:
        age = "a newer" if number > FORMAT else "an older"
        return Refused(
            f"{self.name} (prefix {self.prefix}) was written by {age} Hansa (format {number}, this one knows"
            f" {FORMAT}); choose another prefix, as in ?prefix=NAME"
        )

    def key(self, *words: str | int) -> str:
        """Return a key below the prefix, with its tag."""
        return key_below(self.prefix, *words)

    def _fence(self, tag: int) -> str:
        return f"{self.prefix}:{{{tag}}}:fence"

    def write(self, command: str, key: str, *args: Any) -> Any:
        """Send a command that changes one key; Redis refuses it if another controller has taken the lease."""
        return self.run(WRITE, (key,), command, *args)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys, those with the same tag together."""
        by_tag = defaultdict(list)
        for key in keys:
            by_tag[_tag(key)].append(key)
        for group in by_tag.values():
            for start in range(0, len(group), AT_ONCE):
                self.run(REMOVE, tuple(group[start : start + AT_ONCE]))

    def run(self, script: Script, keys: tuple[str, ...], *args: Any) -> Any:
        """Run a script that begins with the guard on keys of one tag; its first key is that tag's fence."""
        if self._lease.fence is None:
            raise Refused(f"{self.name} (prefix {self.prefix}) is open for reading only")
        faults.reach("redis-write")
        with self.answering():
            return script.run(self.client, (self._fence(_tag(keys[0])), *keys), self._lease.fence, *args)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Send a command that changes one key; Redis refuses it if another controller took the lease."""
        try:
            yield
        except (ex.AuthenticationError, ex.AuthorizationError) as error:
            raise StoreFailed(f"Redis {self.name} refuses: {error}") from None
        except (ex.ConnectionError, ex.TimeoutError, ex.ClusterError, ex.RedisClusterException) as error:
            raise StoreFailed(f"Redis {self.name} does not answer: {error}") from None
        except ex.ResponseError as error:
            if fenced := FENCED.search(str(error)):
                self._overtaken(bool(fenced[1]))
            text = str(error)  # in older Redis, an error inside a script is in the middle of the text
            if isinstance(error, ex.OutOfMemoryError) or "OOM command not allowed" in text:
                raise StoreFailed(
                    f"Redis {self.name} is full; raise its maxmemory or remove other data"
                ) from None
            passing = isinstance(error, ex.ReadOnlyError | ex.NoPermissionError | ex.TryAgainError)
            if passing or PASSING.search(text):
                raise StoreFailed(f"Redis {self.name} refuses: {error}") from None
            other = "does another program use this prefix?"
            raise Broken(f"Redis {self.name}, prefix {self.prefix}: {error}; {other}") from None

    def acquire(self) -> None:
        """Take or prolong the lease; raise Taken, naming its holder, or Broken if Redis lost our lease."""
        with self.answering():
            try:
                self._lease.acquire()
            except LeaseTaken as taken:
                left = f"if that one is dead, its lease ends in {self._lease.left():.0f} s"
                raise Taken(f"{self._in_use(taken.holder)}; {left}") from None
            except LeaseLost as lost:
                if lost.overtaken:
                    raise Taken(self._was_in_use()) from None
                raise self._forgotten() from None

    def _overtaken(self, by_another: bool) -> NoReturn:
        """Raise the reason why a write was refused. If another controller has the lease, renewal ends us."""
        if not by_another:
            raise self._forgotten() from None
        with self.answering():
            holder = self._lease.holder()
        raise StoreFailed(self._in_use(holder) if holder else self._was_in_use()) from None

    def _in_use(self, holder: dict[str, Any]) -> str:
        return (
            f"{self.name} (prefix {self.prefix}) is in use by the controller with pid"
            f" {holder.get('pid', 'unknown')} on {holder.get('host', 'an unknown machine')}"
        )

    def _was_in_use(self) -> str:
        return (
            f"{self.name} (prefix {self.prefix}) was in use by another controller while this one was"
            " suspended or could not reach it: what this one knows about its jobs is out of date;"
            " start it again"
        )

    def _forgotten(self) -> Broken:
        return Broken(
            f"Redis {self.name} lost the mark that lets this controller write below the prefix {self.prefix}:"
            " was it restarted empty, was it flushed, or does it evict keys? Nothing is written until the"
            " controller is started again"
        )

    def close(self) -> None:
        """Give up the lease and the connection."""
        try:
            self._lease.give_up()
        except (ex.RedisError, ex.RedisClusterException):
            log.debug("the lease could not be given up; it will expire")
        self.client.close()

    def warn_of_settings(self) -> None:
        """Warn about a Redis that may lose data; a mere reader could do nothing about it."""
        try:
            policy = self.client.config_get("maxmemory-policy").get("maxmemory-policy", "noeviction")
            append = self.client.config_get("appendonly").get("appendonly", "yes")
        except (ex.RedisError, ex.RedisClusterException, AttributeError):
            return  # not every user may read the settings
        if policy != "noeviction":
            text = "Redis %s evicts keys when it is full (maxmemory-policy %s): set noeviction"
            log.warning(text, self.name, policy)
        if append != "yes":
            text = "Redis %s does not keep an append-only file: if it is restarted, models and jobs are lost"
            log.warning(text, self.name)


def _advice(error: Exception, url: str) -> str:
    """Say what is wrong with a URL, without repeating a password."""
    if re.search("HELLO must be called|Authentication required", str(error)):
        return "it asks for a password; give ?password_file=PATH"
    if isinstance(error, ValueError) and "@" in url:  # the error may quote a part of the password
        return (
            "this is not a URL of a Redis; write characters such as / ? # @ in a password"
            " as %2F %3F %23 %40, or give ?password_file=PATH"
        )
    return str(error)


def _connected(url: str, name: str) -> tuple[Any, str]:
    """Return a client, which has not sent anything yet, and the prefix of our keys."""
    if "://" not in url:
        raise ValueError("write redis://…")
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = query.pop("prefix", "hansa")
    if not NAME.fullmatch(prefix):
        raise ValueError(f"prefix {prefix!r} is not a name")
    secret = query.pop("password_file", None)
    plain = url.partition("?")[0] + (f"?{urlencode(query)}" if query else "")
    if parts.scheme in ("redis", "rediss") and not re.fullmatch(r"/?\d*", parts.path):
        raise ValueError(f"{parts.path!r} is not a database number")
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


def key_below(prefix: str, *words: str | int) -> str:
    """Return a key below a prefix; its tag is computed from its words."""
    name = ":".join(map(str, words))
    return f"{prefix}:{{{zlib.crc32(name.encode()) % TAGS}}}:{name}"


def _tag(key: str) -> int:
    return int(key[key.index("{") + 1 : key.index("}")])


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    place = rest.partition("?")[0]
    if "@" in rest and "@" not in place:  # the ? may be a part of the password
        place = "…"
    return f"{scheme}://{place.rpartition('@')[2]}"
