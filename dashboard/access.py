"""Who may look: the holder of a one-time link on this machine, or of an operator's or viewer's certificate.

A link is exchanged for a session when it is opened for the first time, and is worthless afterwards. Neither
links nor sessions are kept as they are: somebody who reads this process's memory finds only their digests.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from hansa.common.pki.caller import Caller
from hansa.common.values.errors import Forbidden, Unproven

LINK = 600.0  # seconds for opening a link
SESSION = 12 * 3600.0  # seconds that a browser stays signed in
MOST = 100  # links and sessions
ROLES = ("operator", "viewer")


@dataclass(frozen=True)
class Visitor:
    """Somebody who may look; `may_act` says whether changing something is not ruled out for them."""

    name: str
    key: str  # what tells this visitor's forms from those of others
    may_act: bool


class Access:
    """Links, sessions and tokens for forms, which end with the process."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._secret = now, secrets.token_bytes(32)
        self._links: dict[str, float] = {}  # digest -> when it expires
        self._sessions: dict[str, float] = {}

    def new_link(self) -> str:
        """Return the secret of a new link; earlier links that nobody has opened expire."""
        self._links.clear()
        return self._add(self._links, LINK)

    def open_link(self, secret: str) -> str | None:
        """Exchange the secret of a link for that of a session; None if it was used or has expired."""
        expires = self._links.pop(_digest(secret), 0.0)
        return self._add(self._sessions, SESSION) if self._now() < expires else None

    def visitor(self, session: str) -> Visitor | None:
        """Return who looks with a session."""
        digest = _digest(session)
        if self._now() < self._sessions.get(digest, 0.0):
            return Visitor("this machine", digest, may_act=True)
        return None

    def token(self, visitor: Visitor) -> str:
        """Return what a form of this visitor must contain."""
        return hmac.new(self._secret, visitor.key.encode(), sha256).hexdigest()

    def require_token(self, visitor: Visitor, token: str) -> None:
        """Refuse a form that was not made for this visitor."""
        if not hmac.compare_digest(self.token(visitor).encode(), token.encode("utf-8", "replace")):
            raise Forbidden("this form has expired: load the page again")

    def _add(self, to: dict[str, float], life: float) -> str:
        now = self._now()
        for digest in [digest for digest, expires in to.items() if expires <= now]:
            del to[digest]
        while len(to) >= MOST:
            del to[next(iter(to))]
        secret = secrets.token_urlsafe(32)
        to[_digest(secret)] = now + life
        return secret


def visitor_of(caller: Caller | None) -> Visitor:
    """Return who looks with a certificate; refuse those that are not for people."""
    if caller is None:
        raise Unproven("the dashboard needs a certificate; `hansa pki export --p12` writes one for browsers")
    if caller.role not in ROLES:
        raise Forbidden(f"the certificate is for {caller}: only operators and viewers may use the dashboard")
    return Visitor(str(caller), f"{caller.serial:x}", may_act=caller.role == "operator")


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "replace")).hexdigest()
