"""What tests let the SeqIO worker do; imported there and nowhere else."""

import functools

import numpy as np
import seqio
import tensorflow as tf

from t5core.data import preprocessors, seqio_registered


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
