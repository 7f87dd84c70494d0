"""The data of `train`: any iterable of batches, gone on with where it was left, and what is refused of it."""

import itertools
import json

import numpy as np
import pytest

from t5core import batches, datasets, errors
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LossConfig
from t5core.data.vocabulary import ByteVocabulary
from t5core.dataset_config import DatasetConfig
from t5core.models.build import build_model
from tests.t5core import tiny, train_runs
from tests.t5core.data import making
from tests.t5core.train_runs import lines, run


class WithRandomAccess:
    """Has every batch at hand; notes which were asked for."""

    def __init__(self):
        self.asked = []

    def batch(self, step, *, rows=None):
        self.asked.append(step)
        return {name: values[rows] for name, values in tiny.batch(step).items()}


class LikeTensorFlow:
    """The part of a tf.data.Dataset that is used, `batch` included, which is none of a step."""

    def __init__(self, first=0):
        self.first = first

    def __iter__(self):
        raise AssertionError("tensors are not arrays")

    def skip(self, count):
        return LikeTensorFlow(self.first + count)

    def as_numpy_iterator(self):
        return (tiny.batch(step) for step in itertools.count(self.first))

    def batch(self, size):
        raise AssertionError("this is not random access")


KINDS = {
    "iterable": train_runs.Numbers,
    "iterator": lambda: iter(train_runs.Numbers()),
    "list": lambda: [tiny.batch(step) for step in range(8)],
    "random access": WithRandomAccess,
    "tensorflow": LikeTensorFlow,
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return run(tmp_path_factory.mktemp("straight"), total_steps=8)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_of_any_kind_is_gone_on_with_at_the_batch_it_was_left(tmp_path, straight, kind):
    for total_steps in (3, 8):
        _, state = run(tmp_path, get_dataset_fn=lambda *_: KINDS[kind](), total_steps=total_steps)
    train_runs.assert_same(state, straight)


def test_random_access_reads_nothing_twice_and_nothing_before(tmp_path):
    run(tmp_path, total_steps=3)
    data = WithRandomAccess()
    run(tmp_path, get_dataset_fn=lambda *_: data, total_steps=6)
    assert data.asked == [3, 4, 5]


def test_the_function_gets_the_arguments_of_t5x(tmp_path):
    seen = []

    def get_dataset_fn(*arguments):
        seen.append(arguments)
        return train_runs.Numbers()

    def train_eval_get_dataset_fn(*arguments):
        seen.append(arguments)
        return train_runs.evaluation(*arguments)

    validation = train_runs.config("val", split="validation")
    run(
        tmp_path,
        total_steps=1,
        get_dataset_fn=get_dataset_fn,
        train_eval_get_dataset_fn=train_eval_get_dataset_fn,
        train_eval_dataset_cfg=validation,
    )
    assert seen[0][:3] == (train_runs.config(), 0, 1)
    assert seen[1][:4] == (validation, 0, 1, 2)
    assert callable(seen[0][3])
    assert callable(seen[1][4])


def test_a_seed_that_is_not_given_is_drawn_once_for_the_run(tmp_path):
    seeds = []

    def get_dataset_fn(cfg, *_):
        seeds.append(cfg.seed)
        return train_runs.Numbers()

    for folder in ("one", "one", "other"):
        run(
            tmp_path / folder,
            get_dataset_fn=get_dataset_fn,
            train_dataset_cfg=train_runs.config(seed=None),
            total_steps=0,
        )
    assert seeds[0] == seeds[1] != seeds[2]
    assert seeds[0] == json.loads((tmp_path / "one" / "train.json").read_text())["dataset_seed"]


def test_without_a_batch_size_each_data_shard_gets_a_row(tmp_path):
    seen = []

    def get_dataset_fn(cfg, *_):
        seen.append(cfg.batch_size)
        return ({name: rows[: cfg.batch_size] for name, rows in tiny.batch(s).items()} for s in itertools.count())

    for batch_size in (None, 0):
        cfg = train_runs.config(batch_size=batch_size)
        run(tmp_path / str(batch_size), get_dataset_fn=get_dataset_fn, train_dataset_cfg=cfg, total_steps=0)
    assert seen == [train_runs.trainer().partitioner.num_data_shards] * 2


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            7,
            "get_dataset_fn returned a int; return an iterable of batches, a tf.data.Dataset, or something with batch(",
        ),
        (tiny.batch(0), "get_dataset_fn returned a dict; return an iterable of batches"),
        (
            [tiny.batch(0)] * 2,
            "the training dataset ended after 2 batches, and step 2 needs another; repeat it, add dat",
        ),
        ([], "the training dataset ended after 0 batches, and step 0 needs another"),
        ([[1, 2]], "the batch of step 0 is a list; give a mapping of feature -> array"),
        ([{}], "the batch of step 0 has the shapes {}; each feature needs 4 rows, this process's part"),
        (
            [tiny.batch(0, rows=3)],
            "the batch of step 0 has the shapes {'encoder_input_tokens': (3, 6), 'decoder_target_t",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_one_line(tmp_path, dataset, message):
    with pytest.raises(errors.DataError) as raised:
        run(tmp_path, get_dataset_fn=lambda *_: dataset)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def evaluated(tmp_path, mapping, **changes):
    run(
        tmp_path,
        train_eval_dataset_cfg=train_runs.config("val", split="validation", **changes.pop("cfg", {})),
        train_eval_get_dataset_fn=lambda *_: mapping,
        eval_period=2,
        **changes,
    )
    return {name: lines(tmp_path, "training_eval", name) for name in mapping}


def test_an_evaluation_reads_at_most_eval_steps_batches_the_same_each_time(tmp_path):
    endless = train_runs.Numbers()
    once = (tiny.batch(1000 + i) for i in range(3))
    found = evaluated(tmp_path, {"endless": endless, "once": once}, eval_steps=2, total_steps=4)
    assert [line["step"] for line in found["endless"]] == [2, 4]
    assert [line["num_examples"] for line in found["once"]] == [8.0, 8.0]
    assert endless.taken == [0, 1], "kept in memory"


def test_an_evaluation_may_be_read_anew_each_time(tmp_path):
    endless = train_runs.Numbers()
    evaluated(tmp_path, {"endless": endless}, cfg={"use_memory_cache": False}, total_steps=4)
    assert endless.taken == [0, 1, 0, 1]


def test_an_evaluation_without_batches_is_an_error(tmp_path):
    with pytest.raises(errors.DataError, match="the evaluation dataset 'none' has no batch; add data or leave it out"):
        evaluated(tmp_path, {"none": []})


def test_nothing_to_evaluate_is_said_and_no_error(tmp_path, capsys):
    evaluated(tmp_path, {})
    assert "'val' has nothing to evaluate: no split 'validation'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_steps": -1}, "total_steps=-1 is negative; give 0 or more"),
        ({"eval_period": -1}, "eval_period=-1 is negative; give 0 or more"),
        ({"stats_period": -1}, "stats_period=-1 is negative; give 0 or more"),
        ({"gc_period": -1}, "gc_period=-1 is negative; give 0 or more"),
        ({"relative_steps": -1}, "relative_steps=-1 is negative; give 0 or more"),
        ({"run_eval_before_training": True}, "run_eval_before_training=True has no effect without an evaluation"),
        (
            {"eval_steps": 0, "train_eval_dataset_cfg": train_runs.config("val")},
            "eval_steps=0 evaluates nothing; give 1 or more, or no train_eval config",
        ),
    ],
)
def test_numbers_that_cannot_work_are_refused_before_data_is_read(tmp_path, changes, message):
    data = []
    with pytest.raises(errors.ConfigError) as raised:
        run(tmp_path / "run", get_dataset_fn=lambda *_: data.append(1), **changes)
    assert str(raised.value).startswith(message)
    assert data == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": -4}, "DatasetConfig: batch_size=-4 is not valid: Input should be greater than or equal to 0"),
        (
            {"mixture_or_task_name": ""},
            "DatasetConfig: mixture_or_task_name is empty; name a task, a mixture or a datas",
        ),
        (
            {"use_custom_packing_ops": True},
            "DatasetConfig: use_custom_packing_ops=True has no effect without pack=True",
        ),
        ({"num_workers": 2}, "DatasetConfig: num_workers=2 has no effect: it is AirIO's; leave it out"),
        ({"shufle": True}, "DatasetConfig: unknown key 'shufle' (value True); did you mean 'shuffle'?"),
    ],
)
def test_settings_of_a_dataset_that_cannot_work_are_refused(fields, message):
    with pytest.raises(errors.ConfigError) as raised:
        train_runs.config(**fields)
    assert str(raised.value).startswith(message)


def test_every_field_of_a_dataset_without_a_default_is_asked_for():
    for field in ("mixture_or_task_name", "task_feature_lengths", "split", "batch_size", "shuffle", "seed"):
        fields = train_runs.config().model_dump(exclude={field})
        with pytest.raises(errors.ConfigError, match=f"DatasetConfig: missing key '{field}'; give it a value"):
            DatasetConfig(**fields)


LENGTHS = {"inputs": 12, "targets": 8}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    from t5core.data.mixture import assemble_mixture

    root = str(tmp_path_factory.mktemp("stored"))
    vocabulary = making.VOCABULARY.model_copy(update={"fingerprint": ByteVocabulary(extra_ids=0).fingerprint})
    tasks = [making.task_dataset(root, n, making.examples(9), validation=making.examples(5)) for n in ("a", "b")]
    mixture = assemble_mixture(making.resolved_run(root, {"a": 1.0, "b": 1.0}), vocabulary=vocabulary, tasks=tasks)
    return mixture, tasks


def test_a_stored_dataset_is_not_for_inference_evaluation(stored, tmp_path):
    with pytest.raises(
        errors.ConfigError, match=r"infer_eval_dataset_cfg names the dataset .*, which has no metric func"
    ):
        run(tmp_path / "run", infer_eval_dataset_cfg=stored_config(stored[1][0].uri))


def stored_config(named, **fields):
    settings = {"task_feature_lengths": LENGTHS, "split": "train", "batch_size": 4, "shuffle": True, "seed": None}
    return DatasetConfig(**{"mixture_or_task_name": named, "pack": True, **settings, **fields})


class EncDecConverter:
    pass


def test_a_stored_mixture_is_read_by_step_by_uri_or_by_reference(stored):
    mixture, _ = stored
    for named in (mixture.uri, mixture):
        reader = datasets.get_dataset(stored_config(named), 0, 1, EncDecConverter)
        batch = reader.batch(3)
        assert batch["encoder_input_tokens"].shape == (4, 12)
        part = batches.of_dataset(reader, rows=slice(2, 4))
        with part(3, 4) as opened:
            ((step, half),) = list(opened)
        assert step == 3
        np.testing.assert_array_equal(half["decoder_target_tokens"], batch["decoder_target_tokens"][2:])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pack": False}, "train_dataset_cfg.pack=False has no effect on {uri}, which was written with pack=True"),
        ({"shuffle": False}, "train_dataset_cfg.shuffle=False has no effect on {uri}, which was written with shuffle="),
        ({"use_cached": True}, "train_dataset_cfg.use_cached=True has no effect on {uri}"),
        ({"seed": 8}, "train_dataset_cfg.seed=8 has no effect on {uri}, which was written with seed="),
        ({"split": "validation"}, "{uri}: unknown split 'validation'; known: train"),
        (
            {"task_feature_lengths": {"inputs": 12, "targets": 9}},
            "{uri} has rows of 8 decoder_target_tokens, and the mo",
        ),
        (
            {"task_feature_lengths": {"inputs": 9, "targets": 8}},
            "{uri} has rows of 12 encoder_input_tokens, and the mode",
        ),
        ({"task_feature_lengths": None}, "task_feature_lengths=None, but the rows of {uri} have a length; give it, in"),
        ({"batch_size": 3}, "batch_size=3 does not divide by 2 shards; use a multiple"),
    ],
)
def test_what_was_decided_when_the_mixture_was_written_cannot_be_asked_otherwise(stored, fields, message):
    mixture, _ = stored
    shards = 2 if "batch_size" in fields else 1
    with pytest.raises(errors.UserError) as raised:
        datasets.get_dataset(stored_config(mixture.uri, **fields), 0, shards, EncDecConverter)
    assert str(raised.value).startswith(message.format(uri=mixture.uri))


def test_a_task_s_dataset_is_for_evaluation_and_a_mixture_s_for_training(stored):
    mixture, tasks = stored
    with pytest.raises(errors.ConfigError, match="is the dataset of one task; assemble a mixture of it to train on"):
        datasets.get_dataset(stored_config(tasks[0].uri), 0, 1, EncDecConverter)
    with pytest.raises(errors.ConfigError, match="2 datasets cannot be trained on at once; assemble a mixture of"):
        datasets.get_dataset(stored_config([task.uri for task in tasks]), 0, 1, EncDecConverter)
    with pytest.raises(errors.ConfigError, match="is a mixture as it is trained on, without examples to evaluate"):
        datasets.get_training_eval_datasets(stored_config(mixture.uri), 0, 1, 9, EncDecConverter)
    with pytest.raises(errors.ConfigError, match="continue_from_last_checkpoint=True is not supported"):
        datasets.get_dataset(stored_config(mixture.uri), 0, 1, EncDecConverter, None, True)


def test_stored_splits_are_evaluated_row_by_row_on_any_number_of_shards(stored):
    _, tasks = stored
    cfg = stored_config([task.uri for task in tasks], pack=False, split="validation")
    whole = datasets.get_training_eval_datasets(cfg, 0, 1, 9, EncDecConverter)
    assert list(whole) == ["a", "b", "a+b"]
    halves = [datasets.get_training_eval_datasets(cfg, shard, 2, 9, EncDecConverter) for shard in (0, 1)]
    for name, count in {"a": 2, "b": 2, "a+b": 4}.items():
        assert len(list(whole[name])) == count
        for batch, one, two in zip(whole[name], halves[0][name], halves[1][name], strict=True):
            assert len(batch["encoder_input_tokens"]) == 4
            for feature, rows in batch.items():
                np.testing.assert_array_equal(rows, np.concatenate([one[feature], two[feature]]))
    limited = datasets.get_training_eval_datasets(cfg, 0, 1, 1, EncDecConverter)
    assert len(list(limited["a"])) == 1


def test_splits_that_are_missing_are_left_out_and_none_at_all_is_an_error(stored):
    _, tasks = stored
    one = stored_config(tasks[0].uri, pack=False, split="test")
    assert datasets.get_training_eval_datasets(one, 0, 1, 9, EncDecConverter) == {}
    both = stored_config([task.uri for task in tasks], pack=False, split="test")
    with pytest.raises(errors.DataError, match=r"no task of 'a\+b' has the split 'test'; name one that they have"):
        datasets.get_training_eval_datasets(both, 0, 1, 9, EncDecConverter)


def model_with(vocabulary, *, vocab_size=1024):
    config = ModelConfig(**{**tiny.SIZES, "vocab_size": vocab_size})
    return build_model(config, LossConfig(), input_vocabulary=vocabulary, output_vocabulary=vocabulary)


def test_the_vocabulary_of_a_stored_dataset_is_compared_by_content_and_has_to_fit_the_embedding(stored):
    mixture, _ = stored
    cfg = stored_config(mixture.uri)
    datasets.verify_matching_vocabs(cfg, model_with(ByteVocabulary(extra_ids=0)))
    datasets.verify_matching_vocabs(cfg, model_with(None))
    datasets.verify_matching_vocabs(cfg, "a model of one's own")
    with pytest.raises(
        errors.ConfigError, match=r"was written with the vocabulary \w{16}, and the model has \w{16}; bu"
    ):
        datasets.verify_matching_vocabs(cfg, model_with(ByteVocabulary(extra_ids=100)))
    with pytest.raises(
        errors.ConfigError, match=r"has 259 ids, and the model's embedding 256 rows; make vocab_size 259"
    ):
        datasets.verify_matching_vocabs(cfg, model_with(ByteVocabulary(extra_ids=0), vocab_size=256))
