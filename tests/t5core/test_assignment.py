"""Names in a checkpoint become names in a model."""

import pytest

from t5core import errors, trees
from t5core.assignment import apply_assignment_map

STORED = {"target": {"old": {"a": 1, "b": 2}, "same": 3}, "state": {"step": 7}}
WANTED = {"target": {"new": {"a": 0, "b": 0}, "same": 0}, "state": {"step": 0}}


def assigned(*assignment_map, stored=STORED, wanted=WANTED, **options):
    return trees.flatten(apply_assignment_map(stored, wanted, assignment_map=assignment_map, **options))


def test_groups_of_the_pattern_fill_in_the_source():
    found = assigned((r"target/new/(\w)", r"target/old/\1"))
    assert found == {"target/new/a": 1, "target/new/b": 2, "target/same": 3, "state/step": 7}


def test_two_names_may_have_one_source_and_the_first_pattern_counts():
    found = assigned((r"target/new/a", "target/old/b"), (r"target/new/.", "target/old/b"))
    assert (found["target/new/a"], found["target/new/b"]) == (2, 2)
    assert found["target/old/a"] == 1, "what nobody asked for stays"
    assert "target/old/b" not in found


def test_none_means_that_the_checkpoint_has_none():
    found = assigned(("target/new/.*", "target/old/a"), ("target/same", None))
    assert "target/same" not in found
    assert found["state/step"] == 7


def test_a_source_that_is_a_wanted_name_too_is_kept_there():
    found = assigned(("target/new/.", "target/same"))
    assert (found["target/new/a"], found["target/same"]) == (3, 3)


def test_a_pattern_matches_whole_names_only():
    with pytest.raises(errors.CheckpointError) as raised:
        assigned(("target/ne", "target/old/a"))
    assert str(raised.value).startswith(
        "assignment_map: 'target/ne' matches no name of the model; did you mean 'target/"
    )


def test_a_source_that_is_missing_is_named():
    with pytest.raises(errors.CheckpointError) as raised:
        assigned(("target/new/(.)", r"target/odl/\1"))
    assert str(raised.value) == (
        "assignment_map: target/new/a is to come from 'target/odl/a', which is not there; did you mean 'target/old/a'?"
    )


def test_the_run_s_own_checkpoint_has_the_names_already():
    assert assigned(("target/nothing", "x"), is_resuming=True) == trees.flatten(STORED)
