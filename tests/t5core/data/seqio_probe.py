"""What tests let the SeqIO worker do; imported there and nowhere else."""

import functools
import importlib
import sys

import numpy as np
import seqio
import tensorflow as tf

from t5core import storage
from t5core.data import preprocessors, seqio_counts, seqio_registered, seqio_tasks
from t5core.data.sources import TaskSource
from t5core.evaluation import seqio_metrics


def preprocessed(kind, texts, settings):
    """Returns [inputs, targets] of each example that a SeqIO task makes from `texts`, lists of token ids."""
    return _preprocessed(kind, texts, **settings)


def _preprocessed(kind, texts, *, lengths, seed=0, extra_ids=100, identity=True, shards=1, model=None, **settings):
    vocabulary = (
        seqio.ByteVocabulary(extra_ids=extra_ids)
        if model is None
        else seqio.SentencePieceVocabulary(model, extra_ids=extra_ids)
    )
    sides = ("targets",) if kind == "full_lm" else ("inputs", "targets")
    step = functools.partial(getattr(preprocessors, kind), **settings)
    task = seqio.Task(
        "probe",
        source=seqio.FunctionDataSource(functools.partial(source_of, texts, identity), splits=["train"]),
        output_features={side: seqio.Feature(vocabulary, add_eos=True) for side in sides},
        preprocessors=[step] if kind == "full_lm" else [step, seqio.preprocessors.append_eos],
    )
    found = []
    for index in range(shards):
        examples = task.get_dataset(
            lengths,
            split="train",
            shuffle=False,
            seed=seed,
            shard_info=seqio.ShardInfo(index=index, num_shards=shards) if shards > 1 else None,
            trim_output_features=False,
        )
        for example in examples.as_numpy_iterator():
            found.append([example[side].tolist() if side in example else [] for side in ("inputs", "targets")])
    return found


def source_of(texts, identity, split, shuffle_files, seed=None):
    def generate():
        for number, text in enumerate(texts):
            example = {"targets": np.array(text, np.int32)}
            yield {**example, "example_id": number} if identity else example

    signature = {"targets": tf.TensorSpec([None], tf.int32)}
    if identity:
        signature["example_id"] = tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def filled(rows, inputs, targets):
    """Returns what `supervised_template` makes from `rows`, dictionaries of the same columns."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    dataset = preprocessors.supervised_template(
        tf.data.Dataset.from_tensor_slices(columns), inputs=inputs, targets=targets
    )
    return [{side: text.decode() for side, text in example.items()} for example in dataset.as_numpy_iterator()]


def seqio_ids(model, extra_ids, texts):
    """Returns the ids that SeqIO gives for `texts`, in TensorFlow and in Python, and what it reads from them."""
    vocabulary = (
        seqio.ByteVocabulary(extra_ids=extra_ids)
        if model is None
        else seqio.SentencePieceVocabulary(model, extra_ids=extra_ids)
    )
    ids = [list(map(int, vocabulary.encode(text))) for text in texts]
    in_tensorflow = [vocabulary.encode_tf(tf.constant(text)).numpy().tolist() for text in texts]
    return {
        "size": vocabulary.vocab_size,
        "ids": ids,
        "in_tensorflow": in_tensorflow,
        "decoded": [vocabulary.decode(i) for i in ids],
    }


def data_of_files(pattern):
    """Returns what stands for the data of a SeqIO source that reads files."""
    return seqio_registered._data_of(seqio.TextLineDataSource({"train": pattern}))


def registered_names():
    """Returns the names of all registered SeqIO tasks."""
    return sorted(seqio.TaskRegistry.names())


def metrics_described_anew(folder, modules, names, registering):
    """Returns what is said of the metrics of tasks whose modules in `folder` were written since the last time."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.dont_write_bytecode = True  # files of one second and one size would be taken for the same
    importlib.invalidate_caches()
    for module in modules:
        sys.modules.pop(module, None)
    for name in names:
        seqio.TaskRegistry.remove(name)
    seqio_metrics.describe_metrics.cache_clear()
    return seqio_metrics.describe_metrics(names, registering)


def write_cache(folder, settings):
    """Writes what SeqIO's cache script would for `registered_cached`, its inputs `shift` ids higher."""
    _write_cache(folder, **settings)


def _write_cache(folder, *, shards=2, shift=0, without=()):
    task = seqio_registered.registered_task("registered_cached", module=f"{__package__}.registered_tasks")
    for split in ("train", "validation"):
        source = task.preprocess_precache(task.source.get_dataset(split, shuffle=False))
        examples = [{**example, "inputs": example["inputs"] + shift} for example in source.as_numpy_iterator()]
        examples = [{name: value for name, value in e.items() if name not in without} for e in examples]
        for number in range(shards):
            with tf.io.TFRecordWriter(f"{folder}/{split}.tfrecord-{number:05d}-of-{shards:05d}") as writer:
                for example in examples[number * len(examples) // shards : (number + 1) * len(examples) // shards]:
                    writer.write(seqio.dict_to_tfexample(example).SerializeToString())
        tensors = {name: tf.constant(value) for name, value in examples[0].items()}
        features = {n: {"shape": [None] * t.shape.rank, "dtype": t.dtype.name} for n, t in tensors.items()}
        info = {"num_shards": shards, "features": features, "seqio_version": seqio.__version__}
        storage.write_json(f"{folder}/info.{split}.json", info)
        storage.write_json(f"{folder}/stats.{split}.json", {"examples": len(examples)})
    storage.write_text(f"{folder}/COMPLETED", "")


def draws(seeds, count, low, high):
    """Returns what TensorFlow draws for pairs of seeds: `count` numbers each, and an integer in [low, high) each."""
    numbers = [tf.random.stateless_uniform([count], seed, alg="philox").numpy() for seed in seeds]
    integers = [
        int(tf.random.stateless_uniform([], seed, a, b, tf.int32, alg="philox"))
        for seed, a, b in zip(seeds, low, high, strict=True)
    ]
    firsts = [int(next(iter(tf.data.Dataset.random(int(seed) & 0x7FFFFFFF)))) for seed, _ in seeds]
    return np.stack(numbers), integers, firsts


def examples_of_task(config, reference, lengths, seed):
    """Returns the training examples that SeqIO makes of a task with its own text, and what was dropped and noted."""
    source = TaskSource(config)
    vocabulary = seqio_tasks.vocabulary_for_seqio(reference)
    task = seqio_tasks.task_from_config(config, source=source, vocabulary=vocabulary)
    seqio_counts.taken()
    examples = task.get_dataset(
        sequence_length=lengths, split="train", shuffle=False, seed=seed, num_epochs=1, try_in_mem_cache=False
    )
    found = [
        {side: example[side].tolist() for side in task.output_features} for example in examples.as_numpy_iterator()
    ]
    return found, seqio_counts.taken()
