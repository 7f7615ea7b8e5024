"""Who took part: how many of the updates that each site was asked for came, what went wrong, and who was away.

A site that fails in every round must not go unnoticed because the others make a model without it. A site that
was never drawn, that came late, or that is merely slow is not at fault.
"""

from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Task, Train
from hansa.common.values.views import Shortfall
from hansa.common.values.words import plain
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import JobState, Participation

MOST_SITES = (
    10_000  # that a job keeps account of: without TLS anybody can take part under any number of names
)
MOST_WORDS = 300  # characters of a reason
ENOUGH = 0.5  # the share of what a site could have contributed below which it is named
LEFT, IDLE = "the site left", "it was not asked again after its failures"


# The account, kept up by the engine as things happen.


def came(job: Job, site: SiteName) -> None:
    """A learner is here, for the first time or again."""
    account = _account(job, site)
    if account is not None and account.away_since is not None:
        account.away += _made(job.state) - account.away_since
        account.away_since = None


def went(job: Job, site: SiteName, why: str = LEFT) -> bool:
    """A learner is gone, or cannot work for this job; return whether that is new."""
    account = _account(job, site)
    if account is None or (account.away_since is not None and account.absence == plain(why, MOST_WORDS)):
        return False
    if account.away_since is None:
        account.away_since = _made(job.state)
    account.absence = plain(why, MOST_WORDS)
    return True


def asked(job: Job, site: SiteName) -> None:
    """A site is given a training task."""
    account = job.state.participation.get(site)
    if account is not None:
        account.idle_since = None


def answered(job: Job, task: Task) -> None:
    """A site's update was taken."""
    account = _settled(job, task)
    if account is not None and not account.counted:
        account.answered += 1
        account.counted = True


def failed(job: Job, task: Task, why: str) -> None:
    """A training task gave no update that counts; other tasks are not accounted for."""
    account = _settled(job, task) if isinstance(task.work, Train) else None
    if account is not None:
        account.failures += 1
        account.reason = plain(why, MOST_WORDS)
        account.idle_since = _made(job.state)


def explain(job: Job, site: SiteName, why: str) -> None:
    """Name the reason of a failure as the history does."""
    account = job.state.participation.get(site)
    if account is not None and account.failures:
        account.reason = plain(why, MOST_WORDS)


def stopped(job: Job) -> None:
    """Training stops: tasks that are open count as failures only where the site is gone."""
    for task in job.open_tasks.work():
        account = job.state.participation.get(task.site)
        if account is None or not isinstance(task.work, Train):
            continue
        if task.site in job.state.learners:
            account.unfinished = _made(job.state) - task.work.version
        else:
            failed(job, task, LEFT)


def _account(job: Job, site: SiteName) -> Participation | None:
    accounts = job.state.participation
    if site not in accounts and len(accounts) < MOST_SITES:
        accounts[site] = Participation(since=_made(job.state))
    return accounts.get(site)


def _settled(job: Job, task: Task) -> Participation | None:
    """Count a task, and that of a round that was issued once more only once."""
    account = job.state.participation.get(task.site)
    if account is not None and account.last != (task.round, task.hop):
        account.last, account.counted = (task.round, task.hop), False
        account.asked += 1
    return account


def _made(state: JobState) -> int:
    """Return how many community models have been made."""
    return max(state.version, 0)


# What it says.


def shortfalls(state: JobState, rounds: bool) -> list[Shortfall]:
    """Return the sites that contributed nothing or little, those with the least first.

    Of what a site was asked for, and of the time since it first came, only the share counts: a site that was
    drawn seldom or came late is measured by the little that it could do. Without common `rounds` a site that
    is not asked again after its failures is left out for good; with them it may merely not be drawn.
    """
    found = [(share, site) for site in state.participation if (share := _share(state, site, rounds)) < ENOUGH]
    return [_shortfall(state, site, rounds) for _, site in sorted(found)]


def _share(state: JobState, site: SiteName, rounds: bool) -> float:
    """Return which share of what a site could have contributed it did."""
    account = state.participation[site]
    known, missed = _made(state) - account.since, _missed(state, account, rounds)
    if _unfinished(state, account) or (known and _has_nothing(state, site)):
        return 0.0
    share = account.answered / account.asked if account.asked else 1.0
    return share * (known - missed) / known if known else share


def _shortfall(state: JobState, site: SiteName, rounds: bool) -> Shortfall:
    account = state.participation[site]
    known, missed, absence = _made(state) - account.since, _missed(state, account, rounds), account.absence
    if _has_nothing(state, site):
        missed, absence = known, "it has no examples to train on"
    elif (
        not rounds
        and account.idle_since is not None
        and account.idle_since == _out_since(state, account, rounds)
    ):
        absence = IDLE
    return Shortfall(
        site=site,
        contributed=account.answered,
        asked=account.asked,
        failures=account.failures,
        reason=account.reason,
        missed=missed,
        known=known,
        absence=absence,
        unfinished=_unfinished(state, account),
    )


def _missed(state: JobState, account: Participation, rounds: bool) -> int:
    """Return how many versions were made while a site was away, or was not asked any more."""
    return account.away + _made(state) - _out_since(state, account, rounds)


def _out_since(state: JobState, account: Participation, rounds: bool) -> int:
    moments = (account.away_since, None if rounds else account.idle_since, _made(state))
    return min(moment for moment in moments if moment is not None)


def _unfinished(state: JobState, account: Participation) -> bool:
    """Whether most versions were made while a site worked at its first task, in vain."""
    return not account.answered and 2 * account.unfinished > _made(state)


def _has_nothing(state: JobState, site: SiteName) -> bool:
    return state.learners.get(site) == 0 and not state.participation[site].asked
