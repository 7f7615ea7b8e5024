"""What `hansa run` prints at the end: the result, where it is, and what to try next."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hansa.common.job.rulebook import travel_of
from hansa.common.job.spec import DataSpec, JobSpec
from hansa.common.report.material import PAGE, REPORT, RESOLVED
from hansa.common.run.folder import MODEL, model_file
from hansa.common.values.history import Findings
from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import metrics_missing
from hansa.common.values.wording.sizes import amount
from hansa.common.values.wording.words import counted, in_order, listed, share_of

if TYPE_CHECKING:
    from hansa.common.data.site_files import Split

USUAL = ("accuracy", "loss", "weighted_f1")  # the metrics of every classifier, of which one is enough
EXAMPLES: "Mapping[Split, tuple[str, str]]" = {  # on which, and whose they are
    "test": ("test examples", "that no site trained on"),
    "validation": ("validation examples", "that sites kept back"),
    "all": ("examples", "of the validation sites"),
}
OWN_METRICS = 3  # metrics of an app's own in the summary; the report has all


def print_summary(view: JobView, folder: Path, file: Path, spec: JobSpec, split: "Split") -> None:
    """Print how a job ended, and the commands that an operator may want next."""
    assert spec.data is not None
    where = shlex.quote(os.path.relpath(folder))
    click.echo()
    if view.status != "completed":
        how = "failed" if view.status == "failed" else "did not complete"
        click.echo(f"The federation {how}: {view.reason}", err=True)
        click.echo(f"Logs of every process: {where}/logs", err=True)
        return
    sites = len(
        {site for e in view.history for site in (*e.sites, *(s for hop in e.hops for s in hop.sites))}
    )
    work = f"{counted(view.rounds, view.unit)}, {view.seconds:.1f} s"
    click.echo(
        f"Done: {counted(sites, 'site')} trained one model {'together ' if sites > 1 else ''}in {work}."
    )
    click.echo(f"  result   {quality(view, split)}")
    if view.test:
        click.echo(f"  test     {quality_at_test_sites(view.test)}")
    click.echo(
        f"  traffic  {amount(view.bytes_down)} to the sites, {amount(view.bytes_up)} back;"
        " no data left a site"
    )
    part = "" if travel_of(spec).whole else ", with the tensors that travel"
    click.echo(f"  model    {where}/{MODEL}{part}")
    print_best(view, where)
    click.echo(f"  report   {where}/{PAGE}, for programs {REPORT} beside it, logs in {where}/logs")
    click.echo(f"  job      {where}/{RESOLVED}, with every default filled in")
    click.echo()
    click.echo("Next:")
    here = "" if shutil.which("hansa") else os.path.relpath(Path(sys.executable).parent) + "/"
    click.echo(f"  {_use_of_model(view, where, file, spec, here)}")
    words = "--sites 10 --set seed=1" if suits_ten_sites(spec.data) else "--set seed=1"
    click.echo(f"  {here}hansa run {shlex.quote(str(file))} {words}     change the federation")
    click.echo('  README.md, "Five minutes on two terminals": controller and learners as daemons')


def print_best(view: JobView, where: str) -> None:
    """Print which version is the best, if one could be chosen, and where its model is."""
    if view.best is not None:
        which = "the last model" if view.best == view.version else f"{where}/{model_file(view.best, view)}"
        click.echo(f"  best     {which}, version {view.best} of {view.version}")


def _use_of_model(view: JobView, where: str, file: Path, spec: JobSpec, here: str) -> str:
    """Return how to use the model, or that of the first site that has tensors or a model of its own."""
    personal = (entry.personal for entry in reversed(view.history) if entry.personal)
    own = sorted(next(personal, ()), key=in_order)
    whole, predict = travel_of(spec).whole, file.parent / "predict.py"
    if own:
        command = f"{here}hansa learner model {view.job} --site {own[0]} --state {where}/{own[0]}"
        rest = "" if whole else f" --community {where}/{MODEL}"
        return f"{command} -o {own[0]}.safetensors{rest}     the model of a site"
    if not whole:
        into = f"the app's model, built after torch.manual_seed({spec.seed})"
        return f"load {where}/{MODEL} with load_state_dict(…, strict=False) into {into}"
    if predict.exists():
        return f"{here}python {shlex.quote(os.path.relpath(predict))} {where}/{MODEL}"
    return f"load {where}/{MODEL} with safetensors.torch.load_file"


def print_what_is_left(view: JobView, folder: Path) -> None:
    """Print, after Ctrl-C, what exists of a job that did not complete."""
    model = f", its last model (version {view.version})" if view.history else ""
    click.echo(f"stopped; every process has ended; the job's report{model}, the job as it was run", err=True)
    click.echo(f"and its state are in {folder}", err=True)


def quality(view: JobView, split: "Split") -> str:
    """Describe how good the newest model is on test or validation data, by the metrics of its app."""
    if metrics_missing(view):
        return f"not measured: {metrics_missing(view)}"
    if not view.examples:
        return f"not measured{_why_not_measured(view)}"
    last = view.metrics_version == view.version
    of = f"; this is version {view.metrics_version}, the last one was not measured{_why_not_measured(view)}"
    return _described(view, *EXAMPLES[split]) + ("" if last else of)


def quality_at_test_sites(findings: Findings) -> str:
    """Describe how good the same model is at the sites that are held out for testing."""
    if not findings.examples:
        missing = [
            f"{site}: {findings.unevaluated[site]}" for site in sorted(findings.unevaluated, key=in_order)
        ]
        return f"not measured; missing: {listed(missing, 3)}"
    return _described(findings, "examples", "of the test sites")


def _described(findings: JobView | Findings, examples: str, whose: str) -> str:
    """Describe metrics and the examples that they are of."""
    accuracy, loss = findings.metrics.get("accuracy"), findings.metrics.get("loss")
    whole = findings.examples == findings.examples_total and findings.drawn is None
    share = share_of(findings.examples, findings.examples_total, findings.drawn)
    on = f"{findings.examples if whole else share} {examples}"
    if accuracy is None and loss is None:
        return f"the loss on {on} is not a finite number"
    what = f"accuracy {accuracy:.1%}" if accuracy is not None else f"loss {loss:.4f}"
    own = [f"{n} {v:.4f}" for n, v in findings.metrics.items() if n not in USUAL and v is not None]
    return f"{', '.join([what, *own[:OWN_METRICS]])} on {on} {whose}"


def _why_not_measured(view: JobView) -> str:
    """Describe why the versions after the one whose metrics are shown have no metrics that count."""
    since = [entry for entry in view.history if entry.version > (view.metrics_version or 0)]
    last = next((entry for entry in reversed(since) if entry.unevaluated or entry.examples), None)
    if last is None:
        return ""
    share = share_of(last.examples, last.examples_total, last.drawn)
    some = f" on enough examples, only on {share}" if last.examples else ""
    missing = [f"{site}: {last.unevaluated[site]}" for site in sorted(last.unevaluated, key=in_order)]
    return f"{some}; missing: {listed(missing, 3)}"


def suits_ten_sites(data: DataSpec) -> bool:
    """Whether the data can also be split across ten sites: not if sites are natural or listed one by one."""
    return (
        data.files is None
        and set(data.partition) <= {"kind", "labels"}
        and data.partition.get("kind", "iid") in ("iid", "non-iid-l")
    )
