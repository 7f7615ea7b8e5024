"""The codec: every message makes the round trip; invalid ones are refused."""

import math
from typing import Annotated, Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from hansa.common.models.model import Manifest, ModelSpec, Role, TensorInfo
from hansa.common.rpc import codec, task_codec
from hansa.common.values.bounds import COLUMNS, PLUGINS, STEPS, Value
from hansa.common.values.errors import InvalidInput, Rejected
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import Anatomy, Evaluation, Failure, Profile, Progress, UpdateFacts
from hansa.common.values.settings.optimizers import OptimizerSpec, ScheduleSpec
from hansa.common.values.settings.training import (
    AuxiliarySpec,
    LocalPluginSpec,
    Standard,
    Travel,
    ValidationSpec,
)
from hansa.common.values.stated import Stated
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Terms, Train
from hansa.protos import fleet_pb2 as fleet
from hansa.protos import model_pb2 as model

COUNTS = st.integers(0, (1 << 63) - 1)
EXAMPLES = st.integers(0, (1 << 53) - 1)
NUMBERS = st.floats(allow_nan=False)


def _wired(message: Any) -> Any:
    """Send a message through its bytes."""
    return type(message).FromString(message.SerializeToString())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["float32", "bfloat16", "int64", "bool"]),
            st.lists(st.integers(0, 1 << 40), max_size=4),
            st.sampled_from(list(Role)),
            st.integers(0, 1 << 20),
            st.none() | st.floats(0, 1, exclude_max=True),
            st.binary(min_size=32, max_size=32),
        ),
        max_size=5,
    ),
    st.lists(st.text(max_size=5), max_size=3),
)
def test_manifests_make_the_round_trip(
    tensors: list[tuple[str, list[int], Role, int, float | None, bytes]], layers: list[str]
) -> None:
    infos = tuple(TensorInfo(f"t{i}", d, tuple(s), r, n, e) for i, (d, s, r, n, e, _) in enumerate(tensors))
    manifest = Manifest(ModelSpec(infos, tuple(layers)), tuple(digest for *_, digest in tensors))
    back = codec.manifest_from_wire(_wired(codec.manifest_to_wire(manifest)))
    assert back == manifest
    assert back.digest == manifest.digest


@pytest.mark.parametrize("role", [0, 5, 99])
def test_a_tensor_without_a_role_is_rejected(role: int) -> None:
    wire = model.Manifest()
    wire.tensors.add(name="w", dtype="float32")
    wire.tensors[0].role = role  # type: ignore[assignment]
    with pytest.raises(Rejected, match="has no role"):
        codec.manifest_from_wire(_wired(wire))


def _train(**fields: Any) -> Train:
    start = {
        "model": "j1/v3",
        "version": 3,
        "epochs": 2,
        "batch_size": 16,
        "optimizer": {"kind": "sgd", "lr": 0.1},
    }
    return Train.model_validate(start | fields)


@pytest.mark.parametrize(
    "work",
    [
        Survey(moments=True, columns=3, classes=False),
        Survey(moments=False, classes=True),
        Init(),
        _train(),
        _train(tensors=("a", "b")),
        _train(batches=20, after="j1-3"),
        _train(personal_epochs=3),
        _train(optimizer={"kind": "adamw", "lr": 1e-3, "weight_decay": 0.5}),
        _train(optimizer={"kind": "sgd", "lr": 1e-3, "momentum": 0.75}),
        _train(optimizer={"kind": "adam", "lr": 1e-3, "amsgrad": True}, keep_optimizer=True),
        _train(optimizer={"kind": "rprop", "etas": (0.4, 1.3)}, clip=0.5, accumulate=3, precision="bf16"),
        _train(schedule=ScheduleSpec(kind="cosine", by="step", over=9, least=0.1), max_seconds=1.5),
        _train(schedule=ScheduleSpec(kind="step", by="step", every=2, factor=0.5)),
        _train(source=LocalPluginSpec(name="balanced", args={"by": "class"})),
        _train(encoding=LocalPluginSpec(name="topk", args={"share": 0.1})),
        _train(plugins=(LocalPluginSpec(name="proximal", args={"mu": 0.1, "on": [1, None, "x"]}),)),
        Evaluate(model=ModelKey("j1/v3"), version=3),
        Evaluate(model=ModelKey("j1/u7"), version=3, validation=True),
        Evaluate(model=ModelKey("j1/v3"), version=3, own_model=True),
        Evaluate(model=ModelKey("j1/u7"), base=ModelKey("j1/v3"), version=3),
        _train(base=ModelKey("j1/v2"), tensors=("a",)),
        Train(
            model=ModelKey("j1/v3"),
            version=3,
            epochs=9,
            batch_size=8,
            optimizer=OptimizerSpec(),
            plugins=(LocalPluginSpec(name="adaptive", args={"vc_loss": 0.5, "limit": None}),),
            validate_update=True,
        ),
    ],
)
@pytest.mark.parametrize("seed", [0, 1990, (1 << 63) - 1])
def test_tasks_make_the_round_trip(work: Survey | Init | Train | Evaluate, seed: int) -> None:
    task = Task(
        id=TaskId("j1-4"),
        job=JobId("j1"),
        site=SiteName("st-mary"),
        round=7,
        app="apps/app.py:app",
        seed=seed,
        validation=ValidationSpec(fraction=0.1, stratified=False),
        work=work,
    )
    assert task_codec.task_from_wire(_wired(task_codec.task_to_wire(task))) == task


@pytest.mark.parametrize(
    "travel",
    [
        Travel(kind="trainable", match=("*lora*",), personal=("head.*", "out")),
        Travel(kind="personal", norm=True, last=2),
    ],
)
def test_what_travels_makes_the_round_trip(travel: Travel) -> None:
    words = {"app": "app.py:app", "seed": 1, "validation": ValidationSpec(), "round": 0}
    task = Task(id="j1-1", job="j1", site="a", work=Init(), travel=travel, backbone="ab" * 32, **words)
    assert task_codec.task_from_wire(_wired(task_codec.task_to_wire(task))) == task


@pytest.mark.parametrize(
    "standard",
    [
        None,
        Standard(kind="local"),
        Standard(kind="local", columns=2),
        Standard(kind="global", mean=(1.5, -2e300), deviation=(1e-300, 3)),
    ],
)
def test_standards_make_the_round_trip(standard: Standard | None) -> None:
    task = Task.model_validate(
        {
            "id": "j1-1",
            "job": "j1",
            "site": "a",
            "round": 1,
            "app": "a:a",
            "seed": 1,
            "validation": {},
            "work": Init(),
        }
        | {"standard": standard}
    )
    assert task_codec.task_from_wire(_wired(task_codec.task_to_wire(task))) == task


def test_a_task_asks_for_so_many_plugins_only_at_both_ends() -> None:
    """Each may hold a copy of the model, as the proximal term does: a million would exhaust the memory."""
    near = LocalPluginSpec(name="proximal", args={"mu": 0.1})
    fields = {"id": "j1-1", "job": "j1", "site": "a", "round": 1, "app": "a:a", "seed": 1, "validation": {}}
    task = Task.model_validate(fields | {"work": _train(plugins=(near,) * PLUGINS)})
    wire = task_codec.task_to_wire(task)
    assert task_codec.task_from_wire(_wired(wire)) == task
    with pytest.raises(ValidationError, match="at most 100 items"):
        _train(plugins=(near,) * (PLUGINS + 1))
    wire.train.plugins.extend([wire.train.plugins[0]] * 100_000)
    with pytest.raises(ValidationError, match="at most 100 items"):
        task_codec.task_from_wire(_wired(wire))


def test_auxiliary_tensors_make_the_round_trip_and_are_bounded_at_both_ends() -> None:
    """Each set is as large as the model's parameters."""
    fields = {"id": "j1-1", "job": "j1", "site": "a", "round": 1, "app": "a:a", "seed": 1, "validation": {}}
    sets = (AuxiliarySpec(name="c", reset=True), AuxiliarySpec(name="d", down=False, up=False))
    task = Task.model_validate(fields | {"work": _train(auxiliary=sets)})
    wire = task_codec.task_to_wire(task)
    assert task_codec.task_from_wire(_wired(wire)) == task
    for name in ("", "a/b", "../a", "a" * 65):
        wire.train.auxiliary[0].name = name
        with pytest.raises(ValidationError, match="pattern"):
            task_codec.task_from_wire(_wired(wire))
    wire.train.auxiliary[0].name = "c"
    wire.train.auxiliary.extend([wire.train.auxiliary[0]] * 100_000)
    with pytest.raises(ValidationError, match="at most 10 items"):
        task_codec.task_from_wire(_wired(wire))


KINDS: dict[str, type[Value]] = {  # the value of each message of a task
    "Task": Task,
    "Terms": Terms,
    "Standard": Standard,
    "SurveyWork": Survey,
    "ProbeWork": Probe,
    "TrainWork": Train,
    "EvaluateWork": Evaluate,
    "Travel": Travel,
    "Schedule": ScheduleSpec,
}
WIDTHS = {FieldDescriptor.TYPE_UINT32: 32, FieldDescriptor.TYPE_UINT64: 64}


def _whole_numbers() -> list[tuple[type[Value], str, int]]:
    """Return every whole number of a task on the wire: its value class, its field, and its bits."""
    kinds = fleet.DESCRIPTOR.message_types_by_name
    fields = [(value, field) for name, value in KINDS.items() for field in kinds[name].fields]
    return [(value, field.name, WIDTHS[field.type]) for value, field in fields if field.type in WIDTHS]


@pytest.mark.parametrize(("kind", "field", "bits"), _whole_numbers())
def test_every_whole_number_of_a_task_is_bounded_by_what_the_wire_carries(
    kind: type[Value], field: str, bits: int
) -> None:
    """Every task of our values can be sent; this also checks new fields of the wire."""
    bounded: Any = Annotated[kind.model_fields[field].annotation, kind.model_fields[field]]
    within: TypeAdapter[Any] = TypeAdapter(bounded)
    assert within.validate_python(1) == 1
    for beyond in (-1, 1 << bits, 1 << 64):
        with pytest.raises(ValidationError):
            within.validate_python(beyond)


def test_all_messages_of_a_task_are_checked() -> None:
    messages, seen = [fleet.Task.DESCRIPTOR], set[str]()
    while messages:
        message = messages.pop()
        seen.add(message.name)
        messages += [field.message_type for field in message.fields if field.message_type]
    # These have no whole numbers.
    assert seen - KINDS.keys() == {"Auxiliary", "InitWork", "LocalPlugin", "Optimizer", "ValidationSpec"}


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("field", ["lr", "momentum", "weight_decay"])
def test_no_number_of_an_optimizer_is_infinite(field: str, number: float) -> None:
    with pytest.raises(ValidationError, match=field):
        OptimizerSpec.model_validate({field: number})


@pytest.mark.parametrize(
    "args",
    [
        {"a": {1}},
        {"a": object()},
        {"a": "\ud800"},
        {"a": "x" * (1 << 20)},
        {"a": np.float32(1)},
        {"a": 1 + 2j},
    ],
)
def test_arguments_that_json_cannot_hold_are_refused_where_they_are_made(args: Any) -> None:
    with pytest.raises(ValidationError, match="args"):
        LocalPluginSpec(name="x", args=args)


@pytest.mark.parametrize("told", [Profile(n=0), Profile(n=3, mean=(1.0,), m2=(2.0,), classes=(1, 0, 2))])
def test_profiles_make_the_round_trip(told: Profile) -> None:
    report = fleet.TaskReport(site="a", task="j1-1")
    report.profile.MergeFrom(codec.profile_to_wire(told))
    assert codec.outcome_from_wire(_wired(report)) == told


@pytest.mark.parametrize(
    "told",
    [
        fleet.Profile(n=1, mean=[math.nan], m2=[0]),
        fleet.Profile(n=1, mean=[1.0], m2=[-1.0]),
        fleet.Profile(n=1, mean=[1.0], m2=[]),
        fleet.Profile(n=5, classes=[1, 1]),
        fleet.Profile(n=1, mean=[0.0] * 20_000, m2=[0.0] * 20_000),
    ],
)
def test_an_invalid_profile_is_refused(told: fleet.Profile) -> None:
    with pytest.raises(ValueError, match="validation error"):
        codec.outcome_from_wire(fleet.TaskReport(profile=told))


def test_a_task_without_work_is_refused() -> None:
    with pytest.raises(InvalidInput, match="has no work"):
        task_codec.task_from_wire(fleet.Task(id="j1-1"))


@pytest.mark.parametrize("kind", ["", "lion"])
def test_a_task_with_an_unknown_optimizer_is_refused(kind: str) -> None:
    wire = fleet.Task(id="j1-1", job="j1", site="a")
    wire.train.model = "j1/v0"
    wire.train.optimizer.kind = kind
    wire.train.optimizer.lr = 0.1
    with pytest.raises(ValueError, match="kind"):
        task_codec.task_from_wire(wire)


@given(EXAMPLES, EXAMPLES, st.integers(0, STEPS), st.floats(0, 1e9), st.floats(0, 1e9), NUMBERS)
def test_facts_make_the_round_trip(
    n: int, used: int, steps: int, epochs: float, seconds: float, loss: float
) -> None:
    facts = UpdateFacts(n_train=n, n_used=used, steps=steps, epochs=epochs, seconds=seconds, loss=loss)
    assert codec.facts_from_wire(_wired(codec.facts_to_wire(facts))) == facts


@pytest.mark.parametrize(
    "own",
    [
        Evaluation(n=0, loss_sum=0.0),
        Evaluation(n=3, loss_sum=1.5, confusion=((2, 1), (0, 0))),
        Evaluation(n=3, loss_sum=1.5, labels=((2, 1, 0), (0, 0, 3), (0, 0, 0))),
    ],
)
def test_what_a_learner_finds_of_its_update_makes_the_round_trip(own: Evaluation) -> None:
    facts = UpdateFacts(
        n_train=1, n_used=1, steps=1, epochs=1, seconds=0, loss=0, evaluation=own, metrics={"a": 2.5}
    )
    assert codec.facts_from_wire(_wired(codec.facts_to_wire(facts))) == facts


@pytest.mark.parametrize(
    "metrics", [{"no name": 1.0}, {"": 1.0}, {"x" * 65: 1.0}, {f"m{i}": 1.0 for i in range(101)}]
)
def test_what_plugins_found_is_bounded(metrics: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="metrics"):
        codec.facts_from_wire(_wired(fleet.UpdateFacts(metrics=metrics)))


def test_the_anatomy_of_a_model_makes_the_round_trip_and_is_bounded() -> None:
    told = Anatomy(
        ties=(("a", "b"), ("c", "d", "e")), blocks=(0, 1, 1), remarks=("another order",), frozen=(0, 2)
    )
    for anatomy in (told, Anatomy(), None):
        facts = UpdateFacts(n_train=0, n_used=0, steps=0, epochs=0, seconds=0, loss=0, anatomy=anatomy)
        assert codec.facts_from_wire(_wired(codec.facts_to_wire(facts))) == facts
    with pytest.raises(ValueError, match="at most 10 items"):
        codec.facts_from_wire(fleet.UpdateFacts(anatomy=fleet.Anatomy(remarks=["x"] * 11)))
    with pytest.raises(ValueError, match="at most 1000 items"):
        codec.facts_from_wire(
            fleet.UpdateFacts(anatomy=fleet.Anatomy(ties=[fleet.Tie(tensors=["a"])] * 1001))
        )
    with pytest.raises(ValueError, match="more than 100000 names of tied tensors"):
        codec.facts_from_wire(
            fleet.UpdateFacts(anatomy=fleet.Anatomy(ties=[fleet.Tie(tensors=["a"] * 100_001)]))
        )


def test_invalid_findings_of_a_learner_are_refused() -> None:
    wire = fleet.UpdateFacts(evaluation=fleet.Evaluation(n=5, classes=2, confusion=[1, 1, 1, 1]))
    with pytest.raises(ValueError, match="does not count 5 examples"):
        codec.facts_from_wire(wire)
    wire = fleet.UpdateFacts(evaluation=fleet.Evaluation(n=5, classes=2, confusion=[5]))
    with pytest.raises(ValueError, match="do not make a 2×2 matrix"):
        codec.facts_from_wire(wire)


def test_a_loss_that_is_not_a_number_makes_the_round_trip() -> None:
    facts = UpdateFacts(n_train=0, n_used=0, steps=0, epochs=0, seconds=0)
    assert math.isnan(codec.facts_from_wire(_wired(codec.facts_to_wire(facts))).loss)
    note = Progress(task=TaskId("t"), epoch=1, epochs=1, steps=0, loss=math.nan)
    assert math.isnan(codec.progress_from_wire(_wired(codec.progress_to_wire(note))).loss)


@pytest.mark.parametrize(
    ("field", "value"),
    [("seconds", -1.0), ("seconds", math.nan), ("epochs", -0.5), ("steps", STEPS + 1), ("n_train", 1 << 53)],
)
def test_facts_that_cannot_be_are_refused(field: str, value: Any) -> None:
    wire = fleet.UpdateFacts()
    setattr(wire, field, value)
    with pytest.raises(ValueError, match=field):
        codec.facts_from_wire(wire)


@given(st.integers(0, 1000), st.integers(0, 1000), COUNTS, NUMBERS)
def test_progress_makes_the_round_trip(epoch: int, epochs: int, steps: int, loss: float) -> None:
    note = Progress(task=TaskId("j1-1"), epoch=epoch, epochs=epochs, steps=steps, loss=loss)
    assert codec.progress_from_wire(_wired(codec.progress_to_wire(note))) == note


@pytest.mark.parametrize("decoded", ["", "ff00" * 16])
def test_receipts_make_the_round_trip(decoded: str) -> None:
    receipt = Receipt(
        job=JobId("j1"),
        task=TaskId("j1-4"),
        site=SiteName("a"),
        digest="00ff" * 16,
        decoded=decoded,
        sequence=12,
        previous="ab" * 32,
    ).sealed()
    assert codec.receipt_from_wire(_wired(codec.receipt_to_wire(receipt))) == receipt


# Reports.


def _report(evaluation: Evaluation) -> fleet.TaskReport:
    wire = fleet.TaskReport(site="a", task="j1-1")
    wire.evaluation.MergeFrom(codec.evaluation_to_wire(evaluation))
    return wire


@given(
    st.integers(1, 5).flatmap(lambda c: st.lists(st.integers(0, 999), min_size=c * c, max_size=c * c)),
    NUMBERS,
)
def test_evaluations_make_the_round_trip(counts: list[int], loss: float) -> None:
    classes = math.isqrt(len(counts))
    rows = tuple(tuple(counts[i : i + classes]) for i in range(0, len(counts), classes))
    evaluation = Evaluation(
        n=sum(counts), loss_sum=loss, confusion=rows if sum(counts) else (), metrics={"auc": 0.5}
    )
    assert codec.outcome_from_wire(_wired(_report(evaluation))) == evaluation


def test_an_evaluation_on_both_parts_of_the_data_makes_the_round_trip() -> None:
    part = {"n": 3, "loss_sum": 1.0, "confusion": ((2, 1), (0, 0))}
    evaluation = Evaluation(**part, split="test", validation=Evaluation(n=2, loss_sum=0.5))
    assert codec.outcome_from_wire(_wired(_report(evaluation))) == evaluation
    with pytest.raises(ValueError, match="validation data are evaluated beside test data only"):
        Evaluation(**part, validation=Evaluation(n=2, loss_sum=0.5))


@given(st.lists(st.tuples(*[st.integers(0, (1 << 53) // 3)] * 3), max_size=9), NUMBERS)
def test_evaluations_of_several_labels_make_the_round_trip(
    labels: list[tuple[int, int, int]], loss: float
) -> None:
    evaluation = Evaluation(n=(1 << 53) - 1, loss_sum=loss, labels=tuple(labels), metrics={"auc": 0.5})
    assert codec.outcome_from_wire(_wired(_report(evaluation))) == evaluation


@pytest.mark.parametrize("n", [0, 5])
def test_an_evaluation_without_classes_makes_the_round_trip(n: int) -> None:
    evaluation = Evaluation(n=n, loss_sum=1.5)
    assert codec.outcome_from_wire(_wired(_report(evaluation))) == evaluation


def test_an_evaluation_of_a_sites_own_model_makes_the_round_trip_and_must_be_as_stated() -> None:
    own = Evaluation(n=3, loss_sum=0.5, confusion=((3, 0), (0, 0)), metrics={"auc": 0.5})
    both = Evaluation(n=3, loss_sum=1.5, confusion=((2, 1), (0, 0)), personal="j1-7", own_model=own)
    beside = both.model_copy(update={"personal": ""})
    both = both.model_copy(update={"split": "test", "validation": beside})
    wire = _wired(_report(both))
    assert codec.outcome_from_wire(wire, Stated(task="classification", classes=2)) == both
    wire.evaluation.own_model.classes, wire.evaluation.own_model.confusion[:] = 1, [3]
    with pytest.raises(ValueError, match="a confusion matrix of 1 classes, but the site has stated"):
        codec.outcome_from_wire(wire, Stated(task="classification", classes=2))


def test_a_failure_makes_the_round_trip_and_is_kept_short() -> None:
    wire = fleet.TaskReport(failure=fleet.Failure(reason="x" * 5000, final=True))
    assert codec.outcome_from_wire(_wired(wire)) == Failure(reason="x" * 2000, final=True)


@pytest.mark.parametrize(
    "evaluation",
    [
        {"n": 4, "classes": 2, "confusion": [1, 1, 1]},
        {"n": 4, "classes": 2, "confusion": []},
        {"n": 4, "classes": 0, "confusion": [4]},
        {"n": 4, "classes": (1 << 32) - 1, "confusion": [4]},
        {"n": 4, "classes": 2, "confusion": [1, 1, 1, 2]},
        {"n": 0, "classes": 1, "confusion": [(1 << 64) - 1]},
        {"n": 2, "classes": 2, "confusion": [(1 << 63), (1 << 63), 1, 1]},
        {"n": 4, "labels": [1, 1]},
        {"n": 4, "labels": [1, 1, 1, 1]},
        {"n": 4, "labels": [2, 2, 1]},
        {"n": 4, "labels": [1, 1, 1, 0, 0, 5]},
        {"n": 0, "labels": [(1 << 64) - 1, 1, 0]},
        {"n": 4, "labels": [0] * 3 * (COLUMNS + 1)},
        {"n": 4, "classes": 2, "confusion": [1, 1, 1, 1], "labels": [1, 1, 1]},
        {"n": 4, "own_model": {"n": 5}},
        {"n": 4, "own_model": {"n": 4, "classes": 2, "confusion": [1, 1, 1]}},
        {"n": 4, "labels": [1, 1, 1], "metrics": {"micro_f1": 0.5}},
    ],
)
def test_a_nonsensical_evaluation_is_refused(evaluation: dict[str, Any]) -> None:
    wire = fleet.TaskReport(evaluation=fleet.Evaluation(**evaluation))
    with pytest.raises(ValueError, match=r".+"):
        codec.outcome_from_wire(_wired(wire))


def test_a_report_without_an_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match=r".+"):
        codec.outcome_from_wire(fleet.TaskReport(site="a", task="j1-1"))


def test_an_evaluation_that_does_not_add_up_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="not square"):
        Evaluation(n=2, loss_sum=0, confusion=((1, 1),))
    with pytest.raises(ValueError, match="does not count 3 examples"):
        Evaluation(n=3, loss_sum=0, confusion=((1, 1), (0, 0)))
    most, classes = (1 << 53) - 1, 46
    counts = [most] * 2048 + [2048 + 5] + [0] * (classes**2 - 2049)  # 2^64 + 5
    with pytest.raises(ValueError, match="does not count 5 examples"):
        Evaluation(n=5, loss_sum=0, confusion=tuple(tuple(counts[i::classes]) for i in range(classes)))
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        Evaluation(n=0, loss_sum=0, confusion=((1, -1), (0, 0)))
    with pytest.raises(ValueError, match=r".+"):
        Evaluation(n=3, loss_sum=0, confusion=((1, 1), (1,)))


def test_counts_of_labels_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        Evaluation(n=3, loss_sum=0, labels=((1, -1, 0),))
    with pytest.raises(ValueError, match="TP, FP and FN of label 1 are more than 3 examples"):
        Evaluation(n=3, loss_sum=0, labels=((3, 0, 0), (2, 1, 1)))
    with pytest.raises(ValueError, match="give it or labels, not both"):
        Evaluation(n=3, loss_sum=0, confusion=((2, 1), (0, 0)), labels=((1, 1, 1),))
    with pytest.raises(ValueError, match=f"at most {COLUMNS} items"):
        Evaluation(n=3, loss_sum=0, labels=((0, 0, 0),) * (COLUMNS + 1))
    with pytest.raises(ValueError, match="'micro_f1' cannot be the name of an app's metric"):
        Evaluation(n=3, loss_sum=0, labels=((1, 1, 1),), metrics={"micro_f1": 0.5})
    with pytest.raises(ValueError, match="'weighted_f1' cannot be the name of an app's metric"):
        Evaluation(n=1, loss_sum=0, confusion=((1, 0), (0, 0)), metrics={"weighted_f1": 0.5})
    own = {"micro_f1": 0.5, "weighted_f1": 0.5}
    assert Evaluation(n=3, loss_sum=0, metrics=own).metrics == own  # of an app that counts nothing


def test_momentum_belongs_to_sgd() -> None:
    with pytest.raises(ValueError, match="momentum belongs to sgd"):
        OptimizerSpec(kind="adam", momentum=0.5)
