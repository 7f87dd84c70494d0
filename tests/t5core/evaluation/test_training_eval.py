"""Teacher-forced evaluation: every example exactly once, so that no figure depends on how examples are batched."""

import functools

import numpy as np
import pytest

from t5core import datasets
from t5core.data.converters import converter_for
from t5core.data.stored import StoredSplit
from t5core.evaluation.training_eval import TrainEvaluator
from tests.t5core import tiny
from tests.t5core.data import making

LENGTHS = {"inputs": 6, "targets": 5}


@pytest.fixture(scope="module")
def uris(tmp_path_factory):
    root = str(tmp_path_factory.mktemp("evaluated"))

    def written(name, count):
        made = making.examples(count, longest=LENGTHS, seed=count)
        rows = [
            {feature: [token % tiny.VOCAB for token in ids] for feature, ids in example.items()} for example in made
        ]
        return making.task_dataset(root, name, rows, validation=rows, lengths=LENGTHS).uri

    return {"nine": written("nine", 9), "three": written("three", 3)}


@functools.cache
def trainer():
    return tiny.trainer()


@functools.cache
def params():
    return trainer().initial_state().params


def split(uri, batch_size, **settings):
    converter = converter_for("encoder_decoder", LENGTHS)
    return StoredSplit(
        uri=uri, split="validation", batch_size=batch_size, converter=converter, rows=slice(0, batch_size), **settings
    )


def evaluated(named, batch_size, *, eval_steps=None):
    rows = slice(0, batch_size)
    evaluator = TrainEvaluator(named, trainer=trainer(), rows=rows, eval_steps=eval_steps, keep_in_memory=False)
    return evaluator.evaluate(params())


@pytest.fixture(scope="module")
def one_by_one(uris):
    return evaluated({"nine": split(uris["nine"], 1)}, 1)["nine"]


@pytest.mark.parametrize("batch_size", [4, 8, 9, 16])
def test_figures_do_not_depend_on_the_batch_size(uris, one_by_one, batch_size):
    found = evaluated({"nine": split(uris["nine"], batch_size)}, batch_size)["nine"]
    assert found["num_examples"] == one_by_one["num_examples"] == 9
    assert found["timing/seqs"] == 9
    for name in ("loss", "accuracy", "loss_per_nonpadding_target_token"):
        np.testing.assert_allclose(found[name], one_by_one[name], rtol=1e-5, err_msg=name)


def test_three_examples_in_batches_of_two_are_three_whatever_eval_steps_asks_for(uris):
    """Difference from T5X, which repeats them until there are `eval_steps` batches, eight rows of uneven weight."""
    found = evaluated({"three": split(uris["three"], 2, max_rows=8)}, 2, eval_steps=4)["three"]
    assert found["num_examples"] == 3
    np.testing.assert_allclose(found["loss"], evaluated({"t": split(uris["three"], 4)}, 4)["t"]["loss"], rtol=1e-5)


def test_the_mixture_is_its_tasks_together_and_reads_nothing_twice(uris):
    parts = {name: split(uri, 4) for name, uri in uris.items()}
    seen = []

    class Noting(datasets.JoinedSplits):
        def __iter__(self):
            seen.append("the mixture")
            return super().__iter__()

    found = evaluated({**parts, "both": Noting(tuple(parts.values()))}, 4)
    assert seen == [], "what was computed for the tasks is added up"
    assert found["both"]["num_examples"] == 12
    tokens = {
        name: figures["timing/target_tokens_per_second"] * figures["timing/seconds"] for name, figures in found.items()
    }
    summed = sum(found[name]["loss"] * tokens[name] for name in parts)
    np.testing.assert_allclose(found["both"]["loss"], summed / tokens["both"], rtol=1e-6)
