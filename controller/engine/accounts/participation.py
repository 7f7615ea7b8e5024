"""Participation: how many of the requested updates each site contributed, what failed, and when it was away.

A site that fails in every round must not go unnoticed just because the others make a model without it. A site
that was never drawn, that joined late, or that is merely slow is not at fault.
"""

from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Task, Train
from hansa.common.values.views import Shortfall
from hansa.common.values.wording.words import plain
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import JobState, Participation

MOST_SITES = 10_000  # the most sites in an account: without TLS, anyone can join under any number of names
MOST_CHARACTERS = 300  # of a reason
ENOUGH = 0.5  # a site is named if it contributed less than this share of what it could have
LEFT, IDLE = "the site left", "it was not asked again after its failures"


# The account, which the engine updates as things happen.


def note_arrival(job: Job, site: SiteName) -> None:
    """Note that a learner is connected, for the first time or again."""
    account = _account(job, site)
    if account is not None and account.away_since is not None:
        account.away += _versions(job.state) - account.away_since
        account.away_since = None


def note_departure(job: Job, site: SiteName, why: str = LEFT) -> bool:
    """Note that a learner is gone or cannot work for this job; return whether that is news."""
    account, reason = _account(job, site), plain(why, MOST_CHARACTERS)
    if account is None or (account.away_since is not None and account.absence == reason):
        return False
    if account.away_since is None:
        account.away_since = _versions(job.state)
    account.absence = reason
    return True


def note_request(job: Job, site: SiteName) -> None:
    """Note that a site is given a training task."""
    account = job.state.participation.get(site)
    if account is not None:
        account.idle_since = None


def note_update(job: Job, task: Task) -> None:
    """Note that a site's update was accepted."""
    account = _count_task(job, task)
    if account is not None and not account.counted:
        account.answered += 1
        account.counted = True


def note_failure(job: Job, task: Task, why: str) -> None:
    """Note that a training task brought no update that counts; tasks of other kinds are ignored."""
    account = _count_task(job, task) if isinstance(task.work, Train) else None
    if account is not None:
        account.failures += 1
        account.reason = plain(why, MOST_CHARACTERS)
        account.idle_since = _versions(job.state)


def explain_failure(job: Job, site: SiteName, why: str) -> None:
    """Give a site's last failure the reason that the history gives."""
    account = job.state.participation.get(site)
    if account is not None and account.failures:
        account.reason = plain(why, MOST_CHARACTERS)


def note_stop(job: Job) -> None:
    """Note that training stops; an open task counts as a failure only if its site is gone."""
    for task in job.open_tasks.work():
        account = job.state.participation.get(task.site)
        if account is None or not isinstance(task.work, Train):
            continue
        if task.site in job.state.learners:
            account.unfinished = _versions(job.state) - task.work.version
        else:
            note_failure(job, task, LEFT)


def _account(job: Job, site: SiteName) -> Participation | None:
    accounts = job.state.participation
    if site not in accounts and len(accounts) < MOST_SITES:
        accounts[site] = Participation(since=_versions(job.state))
    return accounts.get(site)


def _count_task(job: Job, task: Task) -> Participation | None:
    """Count a task; a task that is issued again in the same round and hop counts once."""
    account = job.state.participation.get(task.site)
    if account is not None and account.last != (task.round, task.hop):
        account.last, account.counted = (task.round, task.hop), False
        account.asked += 1
    return account


def _versions(state: JobState) -> int:
    """Return how many community models have been made."""
    return max(state.version, 0)


# What the account says.


def shortfalls(state: JobState, rounds: bool) -> list[Shortfall]:
    """Return the sites that contributed little or nothing, those with the smallest share first.

    What counts is the share of what a site could have contributed: a site that was rarely drawn or joined
    late is measured by what it was asked for since it joined. Without common `rounds`, a site that is not
    asked again after its failures is out for good; with them, it may simply not have been drawn.
    """
    short = [(share, site) for site in state.participation if (share := _share(state, site, rounds)) < ENOUGH]
    return [_shortfall(state, site, rounds) for _, site in sorted(short)]


def _share(state: JobState, site: SiteName, rounds: bool) -> float:
    """Return the share that a site contributed of what it could have."""
    account = state.participation[site]
    known, missed = _versions(state) - account.since, _missed(state, account, rounds)
    if _unfinished(state, account) or (known and _has_nothing(state, site)):
        return 0.0
    share = account.answered / account.asked if account.asked else 1.0
    return share * (known - missed) / known if known else share


def _shortfall(state: JobState, site: SiteName, rounds: bool) -> Shortfall:
    account = state.participation[site]
    known, missed = _versions(state) - account.since, _missed(state, account, rounds)
    absence = account.absence
    if _has_nothing(state, site):
        missed, absence = known, "it has no examples to train on"
    elif not rounds and account.idle_since == _out_since(state, account, rounds):
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
    """Return how many versions were made while a site was away or no longer asked."""
    return account.away + _versions(state) - _out_since(state, account, rounds)


def _out_since(state: JobState, account: Participation, rounds: bool) -> int:
    moments = (account.away_since, None if rounds else account.idle_since, _versions(state))
    return min(moment for moment in moments if moment is not None)


def _unfinished(state: JobState, account: Participation) -> bool:
    """Whether a site was still working on its first task while most versions were made."""
    return not account.answered and 2 * account.unfinished > _versions(state)


def _has_nothing(state: JobState, site: SiteName) -> bool:
    return state.learners.get(site) == 0 and not state.participation[site].asked
