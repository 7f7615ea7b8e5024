"""Whether more or less of a metric is better."""

import pytest

from hansa.common.values.settings.metrics import mode_of, require_mode


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("accuracy", "max"),
        ("accuracy_personal", "max"),
        ("weighted_f1_by_site", "max"),
        ("top5_accuracy", "max"),
        ("AUC", "max"),
        ("loss", "min"),
        ("val_loss", "min"),
        ("error_rate", "min"),
        ("perplexity", "min"),
        ("inverse_loss", None),
        ("accuracy_loss", None),
        ("accuracy_std", None),
        ("wobble", None),
    ],
)
def test_names_say_what_is_better(metric: str, mode: str | None) -> None:
    assert mode_of(metric) == mode


def test_a_misspelt_metric_is_asked_about() -> None:
    with pytest.raises(ValueError, match="or did you mean accuracy"):
        require_mode("accurcy", None)
    require_mode("accurcy", "max")
