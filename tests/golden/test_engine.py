"""Jobs that are played event by event match the golden files."""

import pytest

from tests.golden import files
from tests.golden.stories import STORIES, file_of, replay


@pytest.mark.parametrize("name", STORIES)
def test_the_same_events_lead_to_the_same_job(name: str) -> None:
    golden = files.read(file_of(name))
    assert golden["job"] == files.plain(STORIES[name].job), "the story has changed: record it again"
    assert not files.differences(golden, files.plain(replay(golden)))
