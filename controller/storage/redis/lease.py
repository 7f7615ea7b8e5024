"""Who may write below a prefix of Redis: a lease that expires, and a fence that does not.

The lease says which controller works here, so that a second one is refused. It cannot stop a controller that
was suspended until its lease expired and then sends an old command. The fence can: every key has one of TAGS
hash tags, every tag has a key with the epoch and the token of the controller that may write, and every write
is a script that checks this key first, inside Redis. A takeover raises the epoch and replaces the fences of
all tags before it does anything else; everything that the former controller sends from then on is refused.
A write is also refused where there is no fence.

    take the lease and fence 0 (one script) ──► claim fences 1, 2, … ──► sweep, read, write

A controller that is overtaken in the middle of this finds a higher epoch and gives up. An expired lease that
no other controller has taken is taken again: the fences are still ours, so nobody has written meanwhile.
"""

import json
import os
import socket
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path
from typing import Any

from redis.exceptions import NoScriptError

LEASE = 15.0  # seconds a lease lives without renewal
TAGS = 64  # hash tags, which spread a prefix over a cluster; a takeover writes to each


class Script:
    """A script in Redis; its text is sent only to a server that does not have it cached."""

    def __init__(self, text: str) -> None:
        self._text, self._digest = text, sha1(text.encode(), usedforsecurity=False).hexdigest()

    def run(self, client: Any, keys: tuple[str, ...], *args: Any) -> Any:
        """Run the script; all keys have the same tag."""
        try:
            return client.evalsha(self._digest, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(self._text, len(keys), *keys, *args)


# KEYS are lease and fence 0; ARGV are our description, the time to live, a holder that is known to be dead,
# our token, whether we had the lease before, and an epoch that ours must exceed. Our own lease is prolonged
# by a command that even a full Redis accepts.
TAKE = Script("""
local held, fence = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
if held and held ~= ARGV[1] and held ~= ARGV[3] then return {'taken', held} end
local epoch, token = string.match(fence or '', '^(%d+) (.*)$')
epoch = tonumber(epoch or 0)
local ours = token == ARGV[4]
if ARGV[5] == '1' and not ours then return {'lost', fence or ''} end
if not ours or epoch <= tonumber(ARGV[6]) then
  epoch = math.max(epoch, tonumber(ARGV[6])) + 1
  redis.call('SET', KEYS[2], string.format('%d %s', epoch, ARGV[4]))
end
if held == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return {'ours', string.format('%d', epoch)}
""")
# Take a tag's fence, unless another controller of our epoch or a later one has it; then return that epoch.
CLAIM = Script("""
local epoch, token = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (.*)$')
if epoch and tonumber(epoch) >= tonumber(ARGV[1]) and token ~= ARGV[2] then return epoch end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
return false
""")
GIVE_UP = Script("if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end")
# Every script that writes begins with this; KEYS[1] is the fence, ARGV[1] its required value.
GUARD = """
local fence = redis.call('GET', KEYS[1])
if fence ~= ARGV[1] then return redis.error_reply('FENCED ' .. (fence or '')) end
"""


class LeaseTaken(Exception):
    """Another controller has the lease; `holder` is its description of itself."""

    def __init__(self, holder: dict[str, Any]) -> None:
        self.holder = holder


class LeaseLost(Exception):
    """The lease was ours, but another controller has had it since (`overtaken`), or Redis lost its data."""

    def __init__(self, overtaken: bool) -> None:
        self.overtaken = overtaken


class Lease:
    """One controller's right to write below a prefix."""

    def __init__(self, client: Any, key: str, fence_of: Callable[[int], str]) -> None:
        self._client, self._key, self._fence_of = client, key, fence_of
        self._token = os.urandom(8).hex()
        self._me = json.dumps(_here() | {"pid": os.getpid(), "token": self._token})
        self.fence: str | None = None  # the value of all fences; None if we never had the lease

    def acquire(self) -> None:
        """Take or prolong the lease, or raise LeaseTaken or LeaseLost.

        A holder on this machine whose process is dead does not count.
        """
        epoch = self._take("", 0)
        while self.fence is None:
            later = self._claim(epoch)
            if later is None:
                self.fence = f"{epoch} {self._token}"
            else:  # another controller has overtaken us, or fence 0 was lost and started over
                epoch = self._take("", later)

    def _take(self, dead: str, least: int) -> int:
        args = (self._me, int(LEASE * 1000), dead, self._token, int(self.fence is not None), least)
        outcome, detail = TAKE.run(self._client, (self._key, self._fence_of(0)), *args)
        if outcome == b"ours":
            return int(detail)
        if outcome == b"lost":
            raise LeaseLost(overtaken=bool(detail))
        other = detail.decode(errors="replace")
        if other == dead or not _is_dead(_read_holder(other)):
            raise LeaseTaken(_read_holder(other))
        return self._take(other, least)

    def _claim(self, epoch: int) -> int | None:
        """Replace the fences of all tags; return the epoch of a fence that is not ours to replace, if any."""
        for tag in range(1, TAGS):
            later = CLAIM.run(self._client, (self._fence_of(tag),), epoch, self._token)
            if later:
                return int(later)
        return None

    def left(self) -> float:
        """Return the seconds until the lease expires."""
        return float(max(self._client.pttl(self._key), 0)) / 1000

    def holder(self) -> dict[str, Any]:
        """Return the description of the lease's holder; empty if there is none."""
        return _read_holder((self._client.get(self._key) or b"").decode(errors="replace"))

    def give_up(self) -> None:
        """Give up the lease. The fences stay: epochs must not start over."""
        GIVE_UP.run(self._client, (self._key,), self._me)


def _here() -> dict[str, str]:
    """Return where our process id is valid: on this machine, since its boot, inside this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        inside = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        inside = ""
    return {"host": socket.gethostname(), "inside": inside}


def _read_holder(lease: str) -> dict[str, Any]:
    """Return the description of a lease's holder; empty if it is damaged: then the lease must expire."""
    try:
        holder = json.loads(lease)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) and isinstance(holder.get("pid"), int) else {}


def _is_dead(holder: dict[str, Any]) -> bool:
    """Whether a lease's holder is known to be dead: it ran here, and its process id is unused or ours."""
    if any(holder.get(name) != place for name, place in _here().items()):
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return bool(holder["pid"] == os.getpid())
