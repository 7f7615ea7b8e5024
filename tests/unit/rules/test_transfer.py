"""How updates are sent, as a part of a rule: what tasks ask for, what goes together and what does not."""

from typing import Any

import pytest

from hansa.common.plugins.registry import kinds, rules
from hansa.common.values.errors import InvalidJob
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.controller.rulebook.compose import compose
from tests.unit.engine.play import Play, job_spec


def asked(**transfer: Any) -> LocalPluginSpec | None:
    play = Play(rule="fedavg", **({"transfer": transfer} if transfer else {}))
    work = play.training("a", "b")["a"].work
    assert isinstance(work, Train)
    return work.encoding


def test_updates_are_sent_as_they_are_unless_the_job_says_otherwise() -> None:
    assert asked() is asked(kind="none") is None
    assert {compose(job_spec(rule=rule)).transfer.kind for rule in rules()} == {"none"}


def test_tasks_name_the_encoding_with_its_parameters() -> None:
    assert asked(kind="float16") == LocalPluginSpec(name="float16", args={"feedback": True})
    assert asked(kind="int8", feedback=False) == LocalPluginSpec(name="int8", args={"feedback": False})
    assert asked(kind="topk", share=0.05) == LocalPluginSpec(
        name="topk", args={"feedback": True, "share": 0.05}
    )


def test_every_kind_has_an_encoding_of_the_same_name() -> None:
    assert set(kinds("transfer")) == {"none", *kinds("encoding")}
    for kind, cls in kinds("encoding").items():
        assert set(cls.model_fields) == set(kinds("transfer")[kind].model_fields)


@pytest.mark.parametrize("share", [0, -0.1, 0.5, 1, "all"])
def test_a_share_that_would_not_save_anything_is_refused(share: Any) -> None:
    with pytest.raises(InvalidJob, match=r"transfer\.share"):
        compose(job_spec(transfer={"kind": "topk", "share": share}))


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_the_middle_of_sparse_updates_is_refused(rule: str) -> None:
    with pytest.raises(InvalidJob, match="does not go with transfer topk: sites send different numbers"):
        compose(job_spec(rule=rule, transfer={"kind": "topk"}))
    compose(job_spec(rule=rule, transfer={"kind": "int8"}))


@pytest.mark.parametrize("kind", ["float16", "int8", "topk"])
def test_what_was_lost_before_a_restart_is_not_added_to_version_0(kind: str) -> None:
    words: dict[str, Any] = {"rule": "divide", "layers": {"prepass": 1, "restart": True}}
    with pytest.raises(InvalidJob, match=r"transfer\.feedback: does not go with layers divide: after a"):
        compose(job_spec(**words, transfer={"kind": kind}))
    compose(job_spec(**words, transfer={"kind": kind, "feedback": False}))


def test_sparse_updates_without_feedback_are_warned_about() -> None:
    for feedback, count in ((True, 0), (False, 1)):
        spec = job_spec(transfer={"kind": "topk", "feedback": feedback})
        assert len(compose(spec).warnings(spec)) == count


@pytest.mark.parametrize("kind", ["float16", "int8", "topk"])
@pytest.mark.parametrize("rule", sorted(set(rules()) - {"median", "trimmed-mean"}))
def test_every_other_rule_goes_with_every_encoding(rule: str, kind: str) -> None:
    assert compose(job_spec(rule=rule, transfer={"kind": kind})).transfer.kind == kind
