"""Commands that submit a job refuse `layers` that do not fit the app's model, if the app is here."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa

APP = """
from torch import nn
from hansa import App

def build():
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    network[0].requires_grad_(False)
    {more}
    return network

app = App(model=build, classes=2)
"""
COMMANDS = (("run",), ("simulate",), ("job", "submit", "--controller", "127.0.0.1:1"))  # where nobody answers


def submitted(folder: Path, command: tuple[str, ...], layers: str, more: str = "") -> str:
    """Return what a command says about a job with an app beside it."""
    (folder / "app.py").write_text(APP.format(more=more))
    data = "data: {source: nowhere}"  # which the job cannot be run with
    (folder / "job.yaml").write_text(f"name: j\napp: app.py:app\nlayers: {layers}\n{data}\n")
    result = CliRunner().invoke(hansa, [*command, str(folder / "job.yaml")])
    assert result.exit_code
    return str(result.exception) if isinstance(result.exception, Exception) else result.output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("{kind: personal, match: ['head.*']}", "layers.match: no tensor of the model matches 'head.*'"),
        ("{kind: personal, last: 2}", "no parameter of the model would travel"),
        ("{kind: personal, match: ['?.*']}", "no parameter of the model would travel"),
        ("{kind: trainable, match: ['0.*'], personal: ['0.*']}", "no parameter of the model would travel"),
        ("{kind: trainable, personal: ['1.*', '2.*']}", "the app trains none of the tensors"),
    ],
)
def test_layers_that_do_not_fit_are_refused_before_a_site_is_asked(
    tmp_path: Path, command: tuple[str, ...], layers: str, message: str
) -> None:
    refused = submitted(tmp_path, command, layers)
    assert message in refused
    assert "(as app.py:app builds the model on this machine)" in refused


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("layers", "more"),
    [
        ("{kind: personal, last: 1}", ""),
        ("{kind: personal, match: ['head.*']}", "network[0].weight.sum().item()"),  # there is no number
        ("{kind: personal, match: ['head.*']}", "import nothing_of_this_name"),
        ("{kind: all}", "raise SystemExit"),
    ],
)
def test_a_job_goes_on_if_they_fit_or_if_the_model_cannot_be_built_here(
    tmp_path: Path, command: tuple[str, ...], layers: str, more: str
) -> None:
    said = submitted(tmp_path, command, layers, more)
    assert "no controller answers" in said or "nowhere" in said
