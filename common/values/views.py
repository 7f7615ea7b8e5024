"""What operators see: the documents behind `--json`, the live view and the tables."""

from collections.abc import Mapping

from hansa.common.values.bounds import Value
from hansa.common.values.history import Findings, Number, VersionView
from hansa.common.values.resolved import Resolved
from hansa.common.values.settings.keep import KeepSpec


class SiteProgress(Value):
    """What a site is doing for a job."""

    site: str
    state: str  # idle, training, done, away, lost
    epoch: int = 0
    epochs: int = 0
    loss: Number = None
    examples: int = 0


class Shortfall(Value):
    """A site that contributed nothing or little to a job."""

    site: str
    contributed: int  # updates that were accepted
    asked: int  # updates requested of it, except those under way when the job ended
    failures: int = 0  # of its tasks; a round may be issued twice
    reason: str = ""  # of the last failure
    missed: int = 0  # versions made while it was away, was unusable, or was no longer asked
    known: int = 0  # versions made since the job first knew of the site
    absence: str = ""  # why it missed them
    unfinished: bool = False  # it worked at its first task for most of the job


class SurveyView(Value):
    """What sites reported about their data."""

    examples: Mapping[str, int] = {}  # of each site
    classes: Mapping[str, tuple[int, ...]] = {}  # examples of each class at each site, if requested
    mean: tuple[float, ...] = ()  # of each standardised column, over all sites
    deviation: tuple[float, ...] = ()


class JobView(Value):
    """A job as operators see it."""

    job: str
    name: str
    operator: str = ""  # who submitted it
    key: str = ""  # what they submitted it under, so that it is submitted once
    rule: str = ""
    app: str = ""
    status: str  # waiting, running, completed, failed, cancelled
    reason: str = ""
    site: str = ""  # that failed, if a site's failure ended the job
    warnings: tuple[str, ...] = ()  # settings of the job that work but are probably not intended
    version: int = 0
    rounds: int = 0
    rounds_asked: int = 0
    unit: str = "round"  # what a merge is called: round; without rounds update, or merge if it takes several
    phase: str = ""  # what the rule calls the round that is under way, if its rounds differ
    seconds: float = 0.0
    submitted: str = ""
    metrics: Mapping[str, Number] = {}  # of the newest version that was evaluated on enough examples to count
    metrics_version: int | None = None  # that version
    examples: int = 0  # that the metrics cover
    examples_total: int | None = None  # that all evaluators of the job had at that time; None: unknown
    drawn: int | None = None  # evaluators that were drawn to stand for all, whose total it is; None: all
    test: Findings | None = (
        None  # what the job's test sites found in that version; None: it has no such sites
    )
    bytes_up: int = 0
    bytes_down: int = 0
    sites: tuple[SiteProgress, ...] = ()
    evaluators: int = 0  # that are connected and can evaluate this job's models
    shortfalls: tuple[Shortfall, ...] = ()  # sites that contributed nothing or little, and why
    survey: SurveyView | None = None
    history: tuple[VersionView, ...] = ()
    best: int | None = None  # the best version so far; None: none could be chosen
    kept: tuple[int, ...] = ()  # versions whose models can be fetched
    keep: KeepSpec = KeepSpec()  # which models the job keeps
    resolved: Resolved | None = None  # the job with every default filled in, if a single job was requested

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self.status in ("completed", "failed", "cancelled")


class EventView(Value):
    """Something that happened in a job, in plain words."""

    sequence: int  # from 1, without gaps
    time: str
    kind: str  # what it is about; docs/operating.md lists the words
    text: str
    site: str | None = None  # if it is about one
    version: int | None = None  # if it is about one


class AuditView(Value):
    """Something that a caller did or was not allowed to do: a record of the audit log."""

    sequence: int
    at: float
    who: str
    what: str
    about: str  # a job, a daemon, an RPC
    why: str = ""
    receipt: str = ""  # hash of the job's newest receipt
    digest: str = ""  # of the job as it was submitted, or of its journal at its end or when it was deleted
    previous: str
    hash: str = ""


class LogView(Value):
    """The last lines of a daemon's log, as far as its site shows them."""

    site: str
    role: str
    lines: tuple[str, ...]


class DaemonView(Value):
    """One daemon of the fleet."""

    site: str
    role: str
    state: str  # attending, away
    since: str  # when this state began
    why: str = ""  # why it is away
    doing: tuple[str, ...] = ()
    apps: Mapping[str, str] = {}  # reference -> "ok, 300 examples, source 1f2e3d4c" or what is wrong
    sources: Mapping[str, str] = {}  # reference -> digest of the source that was loaded
    changed: tuple[str, ...] = ()  # apps whose source on disk differs from the one that was loaded
    version: str = ""
    peer: str = ""


class StatusView(Value):
    """The controller itself."""

    controller: str
    version: str
    pid: int
    address: str
    store: str
    state: str
    since: str
    sites: int
    jobs: Mapping[str, int]
    peak_memory_mib: float
