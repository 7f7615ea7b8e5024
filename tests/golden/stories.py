"""Stories: jobs that are played event by event through the engine. `engine/` holds what came of each.

To record a story, a seeded player improvises: sites join, leave, fail and are late, alarms ring, the
controller restarts. To check it, the steps in the golden file are played again, without any randomness.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from tests.golden.engine import Engine, Step

LAYERS = ["one", "two", "three", "four"]
RISING = [0.125, 0.125, 1.0, 1.0]
DIVERGENCES = {"divergences": dict.fromkeys(("eq3", "cosine", "relative_l2"), RISING), "sites": 2, "pairs": 1}
FACTS: Mapping[str, Any] = {
    "divide": {"facts": DIVERGENCES},
    "feddaf": {"facts": {"remembered": [], "grouped": None}, "kept": {"notes": "array"}},
}


@dataclass(frozen=True)
class Story:
    """A job and how it is played."""

    job: dict[str, Any]
    seed: int
    length: int = 32  # random steps before every site does what it is asked
    learners: int = 4
    evaluators: int = 2
    given: bool = False  # version 0 comes with the submission
    unfit: str = ""  # a site that cannot work for the job
    calm: bool = False  # no site leaves or fails
    rings: float = 1.5  # how often alarms ring
    ending: Literal["", "cancel", "merge fails", "a site cannot", "all fail"] = ""


def file_of(name: str) -> str:
    """Return the golden file of a story."""
    return f"engine/{name.replace(' ', '-')}.json"


def improvise(story: Story) -> dict[str, Any]:
    """Improvise a story and return its steps with what came of each."""
    player = _Player(story)
    for _ in range(story.length):
        if not player.engine.ended:
            player.step(player.any_step())
    for _ in range(80):
        step = None if player.engine.ended else player.last_step() or player.honest_step()
        if step is None:
            break
        player.step(step)
    if player.closed:
        player.step(player.update(player.closed[-1]))  # which is too late in any case
    return {"job": story.job, "first": player.first, "steps": player.steps, "end": player.engine.end()}


def replay(golden: Mapping[str, Any]) -> dict[str, Any]:
    """Play the steps of a golden file again."""
    engine = Engine(golden["job"])
    first = engine.first
    steps = [[step, engine.do(step)] for step, _ in golden["steps"]]
    return {"job": golden["job"], "first": first, "steps": steps, "end": engine.end()}


class _Player:
    """Improvises a story with a seeded generator."""

    def __init__(self, story: Story) -> None:
        self._story, self._chance = story, Random(story.seed)
        self.engine = Engine(story.job)
        self.first, self.steps = self.engine.first, list[list[Any]]()
        self._needs_layers = story.job["rule"] in ("divide", "feddaf") or "layers" in story.job
        self._answerable: dict[int, dict[str, Any]] = {}  # every training task so far
        self._refused: set[int] = set()  # open tasks whose results the job refuses
        self._present: set[tuple[str, str]] = set()
        learners, evaluators = range(story.learners), range(story.evaluators)
        self._everybody = [("abcdefgh"[i], "learner") for i in learners]
        self._everybody += [("abcdefgh"[i], "evaluator") for i in evaluators]
        if story.given:
            self.step({"do": "give"})
        for who in self._chance.sample(self._everybody, len(self._everybody)):
            self.step(self._join(who))
        if story.unfit:
            self.step({"do": "cannot join", "site": story.unfit, "role": "learner"})

    @property
    def closed(self) -> list[int]:
        """Training tasks that are over."""
        return [number for number in self._answerable if number not in self.engine.open]

    def step(self, step: Step) -> None:
        """Take a step, and record what came of it."""
        outcome = self.engine.do(step)
        self.steps.append([step, outcome])
        self._refused |= {step["task"]} if "refused" in outcome and "task" in step else set()
        if step["do"] in ("join", "leave"):
            (self._present.add if step["do"] == "join" else self._present.discard)(
                (step["site"], step["role"])
            )
        if not self.engine.ended:
            self._answerable |= {n: task for n, task in self.engine.open.items() if task["kind"] == "train"}

    def any_step(self) -> Step:
        """Choose what happens next."""
        absent = [who for who in self._everybody if who not in self._present]
        here = [number for number in self._unanswered() if self._here(self.engine.open[number])]
        choices: list[tuple[float, Any]] = [
            (1, lambda: {"do": "wait", "seconds": self._chance.randint(1, 6) / 2})
        ]
        if here:
            choices.append((12, lambda: self._answer(self._chance.choice(here))))
        if self.engine.running:
            choices.append(
                (6, lambda: self._order(self._chance.choice(sorted(self.engine.running)), trouble=True))
            )
        if absent:
            choices.append((3, lambda: self._join(self._chance.choice(absent))))
        choices += [(0.8, lambda: {"do": "restart"}), (0.4, lambda: {"do": "replay"})]
        if not self._story.calm:
            if here:
                choices.append((2.5, lambda: self._trouble(self._chance.choice(here))))
            if self.closed:
                choices.append((1, lambda: self.update(self._chance.choice(self.closed))))
            if self._present:
                choices.append((1.5, lambda: self._leave(self._chance.choice(sorted(self._present)))))
            if self.engine.alarms:
                choices.append((self._story.rings, lambda: {"do": "ring"}))
        weights = [weight for weight, _ in choices]
        step: Step = self._chance.choices([make for _, make in choices], weights)[0]()
        return step

    def honest_step(self) -> Step | None:
        """Return a step in which someone does what is asked; None if nothing is left to do."""
        for who in self._everybody:
            if who not in self._present:
                return self._join(who)
        ready = self._unanswered() + [-number for number in sorted(self.engine.running)]
        if ready:
            chosen = self._chance.choice(ready)
            return self._answer(chosen) if chosen > 0 else self._order(-chosen)
        return {"do": "ring"} if self.engine.alarms else None

    def last_step(self) -> Step | None:
        """Return a step towards the story's ending; None if it ends by itself, or not yet."""
        training = [number for number in self._unanswered() if self.engine.open[number]["kind"] == "train"]
        merges = [number for number, order in self.engine.running.items() if order["work"] == "merge"]
        match self._story.ending:
            case "cancel":
                return {"do": "cancel"}
            case "merge fails" if merges:
                return {"do": "not done", "order": merges[0]}
            case "a site cannot" if training:
                return {"do": "fail", "task": training[0], "final": True}
            case "all fail" if training:
                return {"do": "fail", "task": training[0]}
        return None

    def _unanswered(self) -> list[int]:
        return sorted(self.engine.open.keys() - self._refused)

    def update(self, number: int) -> Step:
        """Return an update for a training task, or version 0."""
        task = self.engine.open.get(number) or self._answerable[number]
        facts: dict[str, Any] = {
            "n_train": self._examples(task["site"]),
            "n_used": self._chance.randint(1, 20),
            "steps": self._chance.randint(1, 9),
            "epochs": 1,
            "seconds": self._chance.randint(1, 40) / 8,
            "loss": self._eighths(),
        }
        if task.get("validated"):
            facts["own"] = self._found()
        if "importance" in task.get("plugins", {}):
            facts["importance"] = self._eighths()
        layers = {"layers": LAYERS} if self._needs_layers and task["kind"] == "init" else {}
        if layers and self._story.given:
            return {"do": "describe", "task": number, **layers}
        return {"do": "update", "task": number, "facts": facts, **layers}

    def _answer(self, number: int) -> Step:
        match self.engine.open[number]["kind"]:
            case "evaluate":
                return {"do": "report", "task": number, "found": self._found()}
            case "survey":
                n = self._chance.randint(4, 20)
                found = {
                    "n": n,
                    "mean": [self._eighths(), 2.0],
                    "m2": [n * 0.25, n * 4.0],
                    "classes": [n - 3, 3],
                }
                return {"do": "survey", "task": number, "found": found}
            case "probe":
                return {"do": "probe", "task": number, "found": self._eighths()}
        return self.update(number)

    def _trouble(self, number: int) -> Step:
        sends = self.engine.open[number]["kind"] in ("train", "init")
        return {"do": self._chance.choice(["quarantine", "fail"]) if sends else "fail", "task": number}

    def _order(self, number: int, trouble: bool = False) -> Step:
        order = self.engine.running[number]
        if trouble and order["work"] in ("hop", "examine") and self._chance.random() < 0.25:
            return {"do": "not done", "order": number}
        found: Any = {}
        if order["work"] == "hop":
            found = {"divergence": self._eighths(), "digest": "mean" if order["mean"] else ""}
        elif order["work"] == "examine":
            found = FACTS[self._story.job["rule"]]
        elif self._story.job.get("reference"):
            found = {"distance": self._eighths()}
        return {"do": "done", "order": number, **({"found": found} if found else {})}

    def _join(self, who: tuple[str, str]) -> Step:
        return {"do": "join", "site": who[0], "role": who[1], "examples": self._examples(who[0])}

    def _leave(self, who: tuple[str, str]) -> Step:
        return {"do": "leave", "site": who[0], "role": who[1]}

    def _here(self, task: Mapping[str, Any]) -> bool:
        return (task["site"], "evaluator" if task["kind"] == "evaluate" else "learner") in self._present

    def _examples(self, site: str) -> int:
        return 10 * (ord(site) - ord("a") + 1)

    def _found(self) -> dict[str, Any]:
        return {"n": 8, "right": self._chance.randint(0, 8), "loss": self._eighths()}

    def _eighths(self) -> float:
        return self._chance.randint(1, 16) / 8


def _async(rule: str, updates: int = 9, **more: Any) -> dict[str, Any]:
    return {"rule": rule, "pace": {"updates": updates}, "sites": {"min": 3}, **more}


def _rounds(rule: str, rounds: int = 3, **more: Any) -> dict[str, Any]:
    return {"rule": rule, "sites": {"min": 3}, **more, "pace": {"rounds": rounds} | more.get("pace", {})}


SOME = {"kind": "uniform", "fraction": 0.75}
UNTIL = {"cycles": 3, "vc_loss": 2.0, "groups": {"slow": {"sites": ["c"], "tombstones": 3}}}
STORIES: dict[str, Story] = {
    "async-fedavg": Story(_async("async-fedavg", 12), 1),
    "async-fedavg of company": Story(_async("async-fedavg", 8, sites={"min": 3, "together": 3}), 2),
    "async-fedavg that forgets": Story(_async("async-fedavg", merge={"drop_on_leave": True}), 3),
    "async-fedavg of windows": Story(_async("async-fedavg", train={"batches": 3}, weigh={"kind": "used"}), 4),
    "async-fedavg in parts": Story(
        _async("async-fedavg", layers={"kind": "divide", "prepass": 0, "split": 2}), 5
    ),
    "async-dvw": Story(_async("async-dvw", 8), 6, evaluators=4),
    "async-dvw in time": Story(
        _async("async-dvw", 7, weigh={"timeout": 4.0, "min_coverage": 0.9}), 7, evaluators=4, rings=6
    ),
    "async-dvw-adaptive": Story(
        _async("async-dvw-adaptive", 18, train={"until": UNTIL}), 8, length=60, learners=3
    ),
    "async-fedavg until": Story(
        _async("async-fedavg", 18, train={"until": UNTIL | {"rolling": True}}), 41, length=50, learners=3
    ),
    "fedasync": Story(_async("fedasync", server={"max_staleness": 1}), 9),
    "fedasync-constant": Story(_async("fedasync-constant", stop={"seconds": 30}), 10),
    "fedasync-hinge": Story(_async("fedasync-hinge", 10), 11, given=True),
    "fedbuff": Story(_async("fedbuff", pace={"updates": 14, "buffer": 3}, sites={"min": 3}), 44, length=50),
    "fedbuff of company": Story(
        _async("fedbuff", pace={"updates": 11, "buffer": 3}, sites={"min": 3, "together": 3}), 45, length=40
    ),
    "fedbuff with dvw": Story(
        _async(
            "fedbuff",
            pace={"updates": 8, "buffer": 2},
            weigh={"kind": "dvw", "timeout": 5.0},
            merge={"normalise": "weights"},
        ),
        46,
        evaluators=4,
        rings=3,
    ),
    "semisync-fedavg": Story(_rounds("semisync-fedavg", 4, pace={"lambda": 2.0}), 12, length=20),
    "semisync-fedavg in time": Story(
        _rounds("semisync-fedavg", 4, pace={"deadline": 6.0}, sample=SOME), 13, rings=6
    ),
    "fedavg with deadlines": Story(_rounds("fedavg", 4, pace={"deadline": 5.0, "quorum": 0.75}), 14, rings=6),
    "fedavg with a quorum": Story(
        _rounds("fedavg", 4, pace={"quorum": 2}, sample=SOME, evaluate={"every": 2}), 15
    ),
    "fedavg after a survey": Story(_rounds("fedavg", survey={"standardise": "global", "classes": True}), 16),
    "fedavg with a target": Story(
        _rounds("fedavg", 9, stop={"target": {"metric": "accuracy", "value": 0.8}}), 17
    ),
    "fedavg with a reference": Story(
        _rounds("fedavg", reference="r", evaluate={"kind": "by-site"}), 18, given=True
    ),
    "fedavg of last updates": Story(_rounds("fedavg", merge={"kind": "latest"}, sample=SOME), 19),
    "fedavg of company": Story(
        _rounds("fedavg", sites={"min": 3, "together": 3}, sample=SOME), 20, unfit="e"
    ),
    "fedadam": Story(_rounds("fedadam"), 21),
    "sync-dvw": Story(
        _rounds("sync-dvw", weigh={"metric": "macro_f1", "timeout": 5.0}), 22, evaluators=4, rings=3
    ),
    "sync-dvw with few answers": Story(
        _rounds("sync-dvw", 4, sample=SOME, weigh={"min_coverage": 0.9, "timeout": 3.0}),
        42,
        evaluators=4,
        rings=5,
    ),
    "fedmmb": Story(_rounds("fedmmb", train={"batches": 3}), 23),
    "krum": Story(_rounds("krum", merge={"attackers": 0}), 24),
    "feddaf": Story(_rounds("feddaf", 4, sample=SOME, weigh={"refit": 2}), 25),
    "feddaf without rounds": Story(
        _async(
            "feddaf", 7, pace={"kind": "async", "updates": 7}, merge={"kind": "latest"}, weigh={"refit": 2}
        ),
        43,
    ),
    "divide": Story(_rounds("divide", 5, layers={"prepass": 2}), 26),
    "divide again": Story(
        _rounds("divide", 4, layers={"prepass": 1, "restart": True}), 27, given=True, calm=True
    ),
    "radfed": Story(_rounds("radfed", 2, pace={"hops": 3}, sample={"fraction": 0.5}), 28),
    "radfed in time": Story(
        _rounds("radfed", 2, pace={"hops": 2, "deadline": 5.0, "catch_up": 1, "weight": "hops"}, sample=SOME),
        29,
        rings=6,
    ),
    "radfed between merges": Story(
        _rounds(
            "radfed",
            2,
            pace={"hops": 3, "no_repeat": True, "divergence": "delta"},
            evaluate={"virtual": True},
        ),
        30,
    ),
    "radfed with dvw": Story(_rounds("radfed", 2, pace={"hops": 2}, sample=SOME, weigh={"kind": "dvw"}), 31),
    "radfed-i": Story(
        _rounds("radfed-i", 2, pace={"hops": 2}, sample={"fraction": 0.5, "init": "probe"}), 32
    ),
    "power of choice": Story(
        _rounds("fedavg", 4, sample={"kind": "power-of-choice", "candidates": 3, "fraction": 0.5}),
        44,
        rings=4,
    ),
    "radfed-a": Story(_rounds("radfed-a", 2, pace={"hops": 2}, sample=SOME), 33),
    "cancelled": Story(_rounds("radfed-m", 2, pace={"hops": 2}), 34, length=3, ending="cancel"),
    "a merge that fails": Story(_rounds("median"), 35, length=14, ending="merge fails"),
    "a site that cannot": Story(_async("async-fedavg"), 36, length=14, ending="a site cannot"),
    "sites that all fail": Story(_rounds("trimmed-mean"), 37, length=14, ending="all fail"),
    "sites that all fail without rounds": Story(_async("fedasync"), 38, length=14, ending="all fail"),
    "hops that all fail": Story(_rounds("radfed-p", pace={"hops": 2}), 39, length=0, ending="all fail"),
    "too few sites": Story(_rounds("fedavg", sites={"min": 7}), 40, length=0),
}
