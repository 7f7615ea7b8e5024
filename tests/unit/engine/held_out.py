"""What always holds of a job with held-out sites, of which at most one validates and one tests."""

from hansa.controller.engine.subjects import OfUpdate, OfVersion
from tests.unit.engine.play import Play


def check_held_out_sites(play: Play) -> None:
    """Check that they never train or score updates, and that those for testing are counted apart."""
    state, sites = play.machine.state, play.spec.sites
    held_out = {*sites.validation, *sites.test}
    assert not held_out & state.learners.keys()
    for task in play.evaluations():
        match state.subjects[task.id]:
            case OfUpdate():
                assert task.site not in held_out, "a held-out site influences training"
            case OfVersion():
                assert not sites.validation or task.site in held_out
    for record in state.history:
        assert not record.unevaluated.keys() & {*sites.test}
        if sites.validation:
            assert record.unevaluated.keys() <= {*sites.validation}
            assert record.examples in (0, 10)
        if record.test:
            assert record.test.unevaluated.keys() <= {*sites.test}
            assert record.test.examples in (0, 10)
        assert sites.test or record.test is None
