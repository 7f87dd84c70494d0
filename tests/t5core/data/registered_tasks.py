"""A user's module: it registers SeqIO tasks. Imported in the worker and nowhere else."""

import functools

import seqio
import tensorflow as tf

from t5core.data import preprocessors

ROWS = 40
VOCABULARY = seqio.ByteVocabulary(extra_ids=125)


def rows(split, shuffle_files, seed=None, *, count=ROWS):
    del shuffle_files, seed
    numbers = tf.data.Dataset.range(count if split == "train" else 6)
    return numbers.map(
        lambda n: {
            "inputs": tf.strings.join([split, " question ", tf.strings.as_string(n)]),
            "targets": tf.strings.join(["ANSWER ", tf.strings.as_string(n), " ☃" * 3]),
            "answers": tf.strings.join([["yes ", "no "], tf.strings.as_string(n)]),
            "number": n,
        }
    )


def lower(text, example=None, is_target=False):
    """Targets come raw and with their example; predictions without knowing the target."""
    assert example is not None
    assert isinstance(example["answers"][0], bytes)
    return (text.lower(), is_target, int(example["number"]))


def agreement(targets, predictions):
    assert all(is_target for _, is_target, _ in targets)
    assert not any(is_target for _, is_target, _ in predictions)
    assert [n for _, _, n in targets] == list(range(len(targets)))
    equal = [t[0] == p[0] for t, p in zip(targets, predictions, strict=True)]
    return {"agreement": seqio.metrics.Scalar(sum(equal) / len(equal)), "remark": seqio.metrics.Text("left out")}


def of_scores(targets, scores):
    return {"never": 0.0}


@seqio.map_over_dataset(num_seeds=1)
def with_noise(example, seed):
    noise = tf.random.stateless_uniform([4], seed, 3, 250, tf.int32)
    return {**example, "inputs": noise}


class InFiles(seqio.FunctionDataSource):
    """A source whose splits lie in four files, as it says."""

    def list_shards(self, split):
        return [f"{split}-{number}" for number in range(4)]

    def get_dataset(self, split, shuffle=True, seed=None, shard_info=None, *, num_epochs=1):
        examples = super().get_dataset(split, shuffle, seed, num_epochs=num_epochs)
        return examples if shard_info is None else examples.shard(shard_info.num_shards, shard_info.index)


def add(name, *, splits=("train", "validation"), vocabulary=VOCABULARY, steps=(), **settings):
    seqio.TaskRegistry.add(
        name,
        source=settings.pop("source", seqio.FunctionDataSource)(settings.pop("dataset_fn", rows), splits=splits),
        output_features={side: seqio.Feature(vocabulary) for side in settings.pop("sides", ("inputs", "targets"))},
        preprocessors=[seqio.preprocessors.tokenize, *steps, seqio.preprocessors.append_eos_after_trim],
        **settings,
    )


add("registered_good", postprocess_fn=lower, metric_fns=[agreement])
add("registered_noisy", steps=[with_noise])
add("registered_in_files", source=InFiles, steps=[with_noise])
add("registered_without_validation", splits=("train", "test"))
add("registered_without_train", splits=("validation",))
add("registered_other_vocabulary", vocabulary=seqio.ByteVocabulary(extra_ids=7))
add("registered_pass_through", vocabulary=seqio.PassThroughVocabulary(size=384, eos_id=1))
add("registered_filtered", steps=[lambda dataset: dataset.filter(lambda example: False)])
add("registered_failing", dataset_fn=functools.partial(rows, count=-1), steps=[lambda dataset: dataset.undefined()])
add("registered_scored", metric_fns=[of_scores])
add(
    "registered_span_corruption",
    sides=("inputs", "targets"),
    steps=[lambda dataset: dataset.map(lambda x: {"targets": x["targets"]}), preprocessors.span_corruption],
)
add(
    "registered_counted",
    steps=[
        functools.partial(
            preprocessors.drop_unless, keeps=lambda example: example["number"] % 4 != 0, reason="divisible by four"
        ),
        functools.partial(preprocessors.drop_by_length, feature="inputs", minimum=17, reason="short"),
    ],
)


def only_for_training(dataset):
    return dataset.filter(lambda example: tf.strings.regex_full_match(example["inputs_pretokenized"], "train.*"))


add("registered_empty_validation", steps=[only_for_training])
add("registered_cached", steps=[seqio.CacheDatasetPlaceholder()])
add("registered_required", steps=[seqio.CacheDatasetPlaceholder(required=True)])
seqio.MixtureRegistry.add("registered_mixture", ["registered_good", "registered_noisy"], default_rate=1.0)
seqio.MixtureRegistry.add("registered_nested", [("registered_mixture", 3.0), ("registered_counted", 1.0)])
seqio.MixtureRegistry.add("registered_by_size", ["registered_good"], default_rate=seqio.mixing_rate_num_examples)
