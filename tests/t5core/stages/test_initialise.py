"""The first checkpoint of a run."""

import os

import pytest

from t5core import errors
from tests.t5core import small_runs


def test_a_run_whose_name_another_took_before_it_began_writes_no_checkpoint(tmp_path):
    first = small_runs.inputs(small_runs.config(tmp_path, run={"name": "same"}))
    second = small_runs.inputs(small_runs.config(tmp_path, run={"name": "same"}, batch_size=2))
    before = sorted(os.listdir(first.run.uri))
    with pytest.raises(errors.RunDirectoryError, match=f"is that of run {second.run.fingerprint} by now"):
        small_runs.begin(first)
    assert sorted(os.listdir(first.run.uri)) == before
