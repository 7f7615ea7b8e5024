"""Strategies for jobs of all kinds, and for the order in which things happen to them."""

from typing import Any

from hypothesis import strategies as st

STEPS = {  # relative frequencies
    "join": 3,
    "leave": 2,
    "update": 6,
    "everybody answers": 2,
    "fail": 1,
    "quarantine": 1,
    "report": 4,
    "tell": 4,
    "merge": 6,
    "merge out of turn": 1,
    "examine": 6,
    "examine a hop": 3,
    "compare": 2,
    "examine a hop out of turn": 1,
    "probe": 3,
    "examine out of turn": 1,
    "ring": 1,
    "ring out of turn": 1,
    "wait": 2,
    "save": 1,
    "restart": 1,
    "seldom": 1,
}
Step = tuple[str, int]

HELD_OUT = st.sampled_from([{}, {}, {"test": ["d"]}, {"validation": ["c"], "test": ["d"]}])


def _sites(**sizes: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return strategies for sections `sites`, in some of which sites are held out."""
    return st.builds(lambda held_out, **chosen: {"wait": 20.0, **chosen, **held_out}, HELD_OUT, **sizes)


JOBS = st.fixed_dictionaries(
    {
        "pace": st.fixed_dictionaries(
            {"rounds": st.integers(1, 5), "quorum": st.sampled_from([0.3, 0.5, 1.0, 2.0])},
            optional={"deadline": st.just(30.0)},
        ),
        "sites": _sites(min=st.integers(1, 3)) | st.just({"min": 3, "together": 2, "wait": 20.0}),
        "sample": st.sampled_from(
            [
                {"kind": "all"},
                {"kind": "uniform", "fraction": 0.5},
                {"kind": "patient"},
                {"kind": "power-of-choice", "candidates": 2, "fraction": 0.5},
            ]
        ),
        "weigh": st.sampled_from(
            [
                {"kind": "examples"},
                {"kind": "equal"},
                {"kind": "evaluated"},
                {"kind": "dvw"},
                {"kind": "measured"},
            ]
        ),
        "layers": st.sampled_from(
            [{}, {"kind": "divide", "prepass": 2}, {"kind": "divide", "prepass": 1, "restart": True}]
        ),
        "evaluate": st.fixed_dictionaries(
            {"every": st.integers(1, 2)}, optional={"sites": st.integers(1, 2)}
        ),
        "survey": st.sampled_from([{}, {"standardise": "global"}, {"standardise": "local"}]),
        "stop": st.sampled_from([{}, {"seconds": 500.0}, {"target": {"metric": "accuracy", "value": 0.9}}]),
        "reference": st.sampled_from([None, "ab" * 32]),
    }
)


def _with_room(job: dict[str, Any]) -> dict[str, Any]:
    """Let a buffer have room for as many sites as a model needs."""
    together = job["sites"].get("together", 1)
    pace = {name: max(together, value) for name, value in job["pace"].items()}
    return job | {"pace": pace, "sites": {**job["sites"], "wait": 20.0}}


ASYNC_JOBS = st.fixed_dictionaries(
    {
        "rule": st.just("async-fedavg"),
        "pace": st.fixed_dictionaries({"updates": st.integers(1, 12)}),
        "merge": st.sampled_from(
            [
                {"kind": "incremental"},
                {"kind": "incremental", "drop_on_leave": True},
                {"kind": "latest"},
                {"kind": "mean"},
            ]
        ),
        "sites": _sites(min=st.integers(1, 2)),
        "weigh": st.sampled_from(
            [{"kind": "examples"}, {"kind": "evaluated"}, {"kind": "dvw"}, {"kind": "measured"}]
        ),
        "train": st.sampled_from([{}, {"until": {"cycles": 2}}]),
        "layers": st.sampled_from([{}, {"kind": "divide", "prepass": 0, "split": 1}]),
        "evaluate": st.fixed_dictionaries(
            {"every": st.integers(1, 2)}, optional={"sites": st.integers(1, 2)}
        ),
        "survey": st.sampled_from([{}, {"standardise": "global"}, {"standardise": "local"}]),
        "stop": st.sampled_from([{}, {"seconds": 500.0}, {"target": {"metric": "accuracy", "value": 0.9}}]),
        "reference": st.sampled_from([None, "ab" * 32]),
    }
)
TRAVELS = st.fixed_dictionaries(
    {
        "pace": st.fixed_dictionaries(
            {
                "kind": st.just("redistribute"),
                "rounds": st.integers(1, 3),
                "hops": st.integers(1, 3),
                "retries": st.integers(0, 2),
                "catch_up": st.integers(0, 2),
                "no_repeat": st.booleans(),
                "weight": st.sampled_from(["equal", "hops"]),
                "divergence": st.sampled_from(["none", "weights", "delta"]),
            },
            optional={"deadline": st.just(30.0)},
        ),
        "sites": _sites(min=st.integers(1, 3)),
        "sample": st.sampled_from(
            [
                {"kind": "all"},
                {"kind": "uniform", "fraction": 0.5},
                {"kind": "patient"},
                {"kind": "importance", "fraction": 0.6, "init": "probe"},
                {"kind": "importance", "fraction": 0.5},
            ]
        ),
        "local": st.sampled_from([{}, {}, {"kind": "alternate"}]),
        "weigh": st.sampled_from(
            [{"kind": "equal"}, {"kind": "equal"}, {"kind": "evaluated"}, {"kind": "dvw"}]
        ),
        "server": st.sampled_from([{}, {"kind": "mix", "alpha": 0.5}, {"kind": "adam"}]),
        "evaluate": st.fixed_dictionaries(
            {"every": st.integers(1, 2), "virtual": st.booleans()}, optional={"sites": st.integers(1, 2)}
        ),
        "stop": st.sampled_from([{}, {"seconds": 500.0}, {"target": {"metric": "accuracy", "value": 0.9}}]),
        "reference": st.sampled_from([None, "ab" * 32]),
    }
)
ASYNC_TOGETHER = st.fixed_dictionaries(
    {
        "rule": st.just("async-fedavg"),
        "pace": st.fixed_dictionaries({"updates": st.integers(2, 12)}),
        "merge": st.sampled_from([{"kind": "incremental"}, {"kind": "latest"}]),
        "sites": st.just({"min": 2, "together": 2, "wait": 20.0}),
        "weigh": st.sampled_from([{"kind": "examples"}, {"kind": "dvw"}]),
    }
)
BUFFERED = st.fixed_dictionaries(
    {
        "rule": st.just("fedbuff"),
        "pace": st.fixed_dictionaries({"updates": st.integers(1, 12), "buffer": st.integers(1, 4)}),
        "merge": st.sampled_from([{"normalise": "weights"}, {"kind": "mean"}]),
        "weigh": st.sampled_from([{}, {"kind": "equal"}, {"kind": "evaluated"}, {"kind": "dvw"}]),
        "server": st.sampled_from([{}, {"kind": "plain"}, {"kind": "mix", "max_staleness": 1}]),
        "sites": st.sampled_from([{"min": 1}, {"min": 2, "together": 2}]),
        "layers": st.sampled_from([{}, {"kind": "divide", "prepass": 0, "split": 1}]),
    }
).map(_with_room)
ORDERS = st.lists(
    st.tuples(
        st.sampled_from([name for name, often in STEPS.items() for _ in range(often)]),
        st.integers(0, 1 << 16),
    ),
    min_size=10,
    max_size=90,
)
