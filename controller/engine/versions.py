"""A job's updates and versions: their records, and the models that the store must keep because of them."""

from collections.abc import Mapping

from hansa.common.values.history import Findings, Hop, Measured, Version
from hansa.common.values.ids import ModelKey, SiteName, community_key, moment_key, reference_key
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import Best
from hansa.controller.engine.subjects import OfHop, OfUpdate, OfVersion, Subject


def keep_update(job: Job, key: ModelKey, base: ModelKey | None) -> None:
    """Keep an update until it is merged, with the model that it is laid over or compared with, if any."""
    job.retention.add(key)
    job.retention.hold(key)
    job.state.unmerged.add(key)
    if base is not None:
        job.retention.hold(base)
        job.state.bases[key] = base


def release_update(job: Job, key: ModelKey) -> None:
    """Stop keeping an update: a merge has taken it, or none ever will."""
    job.state.unmerged.discard(key)
    job.retention.release(key)
    if key in job.state.bases:
        job.retention.release(job.state.bases.pop(key))


def enter(job: Job, record: Version, key: ModelKey, moments: Mapping[str, str] | None = None) -> None:
    """Make a model the newest version. `moments` are the digests of what its server update carries on."""
    job.retention.add(key)
    job.retention.hold(key)
    _keep_basis(job, record.version, moments or {})
    if job.state.current is not None:
        job.retention.release(job.state.current)
    job.state.version, job.state.current = record.version, key
    if not record.version and job.rule.may_restart:
        job.state.first = key
        job.retention.hold(key)
    job.state.saved[record.version] = key
    job.retention.hold(key)
    update_kept(job)
    job.state.history.append(record)
    job.state.merged += len(record.updates)
    job.state.lost += len(record.lost)
    job.touch(record.version)
    job.touch(max(0, record.version - 1))  # nobody will be asked to evaluate it any more


def update_kept(job: Job) -> None:
    """Stop keeping versions that are not the best, among the newest, or one of every so many."""
    keep, state = job.spec.keep, job.state
    for version in list(state.saved):
        newest = version > state.version - keep.last
        is_best = state.best is not None and version == state.best.version
        if not (newest or is_best or (keep.every and version and version % keep.every == 0)):
            job.retention.release(state.saved.pop(version))


def keep_best(job: Job, best: Best | None) -> None:
    """Keep a version as the best; its evaluation is just over, so the store still has its model."""
    state = job.state
    if best is not None and best.version not in state.saved:
        key = community_key(job.id, best.version)
        state.saved[best.version] = key
        job.retention.hold(key)
    state.best = best
    update_kept(job)


def _keep_basis(job: Job, version: int, moments: Mapping[str, str]) -> None:
    """Keep a new version's moments and the models that it was made from, so that it can be computed again.

    If it follows from the updates alone, they are all that is needed.
    """
    state = job.state
    if not job.rule.builds_on_current or state.current is None:
        return
    carried = (moment_key(job.id, state.version, name) for name in job.rule.moments)
    basis = {key: state.basis[key] for key in carried if key in state.basis}
    basis[state.current] = state.history[-1].stored_digest
    for name, digest in moments.items():
        key = moment_key(job.id, version, name)
        job.retention.add(key)
        basis[key] = digest
    for key in basis:
        job.retention.hold(key)
    for key in state.basis:
        job.retention.release(key)
    state.basis = basis


def moments_of(job: Job, version: int) -> dict[str, ModelKey]:
    """Return the moments that the server update carried on from a version, if they are still kept."""
    keys = {name: moment_key(job.id, version, name) for name in job.rule.moments}
    return {name: key for name, key in keys.items() if key in job.state.basis}


def release_first(job: Job) -> None:
    """Stop keeping version 0 for a rule that might restart from it."""
    if job.state.first is not None:
        job.retention.release(job.state.first)
        job.state.first = None


def keep_reference(job: Job) -> None:
    """Keep the reference model, which is in the store before the job begins."""
    key = job.state.reference = reference_key(job.id)
    job.retention.add(key)
    job.retention.hold(key)


def release_reference(job: Job) -> None:
    """Stop keeping the reference model: no more versions are compared with it."""
    if job.state.reference is not None:
        job.retention.release(job.state.reference)
        job.state.reference = None


def hop_of(job: Job, version: int, hop: int) -> Hop:
    """Return the record of a hop, in the current round or in a version that has been merged meanwhile."""
    hops = job.record(version).hops if version <= job.state.version else job.state.hops
    return next(record for record in hops if record.hop == hop)


def findings_on(job: Job, subject: Subject) -> Findings:
    """Return the findings on the subject of an evaluation for the caller to change."""
    match subject:
        case OfVersion(version):
            return job.record(version)
        case OfHop(version, hop):
            return hop_of(job, version, hop)
        case OfUpdate(task):
            return job.state.updates[task]


def findings_of(job: Job, subject: Subject, site: SiteName) -> Findings:
    """Return the findings that a site's report on a subject belongs to: test sites have their own."""
    findings = findings_on(job, subject)
    if site not in job.held_out.test or not isinstance(findings, Measured):
        return findings
    return findings_of_test_sites(findings)


def findings_of_test_sites(findings: Measured) -> Findings:
    """Return what the job's test sites find in a model."""
    findings.test = findings.test or Findings()
    return findings.test
