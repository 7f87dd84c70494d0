"""Scenes of `train` on SeqIO tasks, in a process of their own; prints what came of each as a line of JSON.

Run as `python -m tests.t5core.seqio_train FOLDER`.
"""

import functools
import itertools
import json
import pathlib
import shutil
import sys

import jax
import numpy as np
import seqio
import tensorflow as tf

from t5core import datasets, errors
from t5core.checkpoints import digest
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LearningRateConfig, LossConfig, OptimizerConfig
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary
from t5core.dataset_config import DatasetConfig
from t5core.evaluation.inference import seqio_evaluator
from t5core.models.build import build_model
from t5core.models.decoding import temperature_sample
from t5core.optim.build import build_optimizer
from t5core.optim.schedule import learning_rate_schedule
from t5core.partitioning import Partitioner
from t5core.train import train
from t5core.trainer import Trainer
from tests.t5core import tiny, train_runs

BYTES = seqio.ByteVocabulary(extra_ids=0)
LENGTHS = {"inputs": 16, "targets": 16}
VALIDATION = 9


def rows(split, shuffle_files, seed=None, *, count=40):
    del shuffle_files, seed
    numbers = tf.data.Dataset.range(count if split == "train" else VALIDATION)
    return numbers.map(
        lambda n: {
            "inputs": tf.strings.join([split, " ", tf.strings.as_string(n)]),
            "targets": tf.strings.join(["ex-", tf.strings.as_string(n), " is longer than the limit allows"]),
        }
    )


def agreement(targets, predictions):
    assert [target.split(" ")[0] for target in targets] == [f"ex-{n}" for n in range(VALIDATION)]
    assert all("limit allows" in target for target in targets), "targets are the full texts"
    return {"examples": len(predictions), "remark": seqio.metrics.Text("left out of the scalars")}


def likelihood(targets, scores):
    assert len(targets) == len(scores) == VALIDATION
    return {"likelihood": float(np.mean(scores))}


def with_aux(targets, predictions, aux_values):
    assert len(targets) == len(predictions) == len(aux_values["scores"])
    return {"aux": seqio.metrics.Scalar(len(predictions))}


def add(name, *, splits=("train", "validation"), vocabulary=BYTES, steps=(), count=40, metric_fns=()):
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(functools.partial(rows, count=count), splits=splits),
        output_features={side: seqio.Feature(vocabulary) for side in ("inputs", "targets")},
        preprocessors=[seqio.preprocessors.tokenize, *steps, seqio.preprocessors.append_eos_after_trim],
        metric_fns=list(metric_fns),
    )


add("numbers", metric_fns=[agreement, likelihood, with_aux])
add("more_numbers")
add("without_validation", splits=("train",))
add("few", count=3)
add("filtered", steps=[lambda dataset: dataset.filter(lambda example: False)])
seqio.MixtureRegistry.add("all_numbers", ["numbers", "more_numbers", "without_validation"], default_rate=1.0)


@functools.cache
def trainer():
    vocabulary = ByteVocabulary(extra_ids=0)
    model = build_model(
        ModelConfig(**{**tiny.SIZES, "vocab_size": 384, "dropout_rate": 0.1}),
        LossConfig(),
        input_vocabulary=vocabulary,
        output_vocabulary=vocabulary,
        decode_fn=temperature_sample,
    )
    return Trainer(
        model=model,
        optimizer=build_optimizer(OptimizerConfig()),
        partitioner=Partitioner(),
        learning_rate_fn=learning_rate_schedule(LearningRateConfig(base_learning_rate=0.1, warmup_steps=4)),
        seed=0,
    )


def config(name, **fields):
    settings = {"task_feature_lengths": LENGTHS, "split": "train", "batch_size": 4, "shuffle": True, "seed": 3}
    return DatasetConfig(**{"mixture_or_task_name": name, **settings, **fields})


def trained(folder, **changes):
    defaults = {
        "model": trainer().model,
        "partitioner": trainer().partitioner,
        "trainer_cls": lambda **_: trainer(),
        "train_dataset_cfg": config("numbers", pack=True),
        "get_dataset_fn": datasets.get_dataset,
        "train_eval_get_dataset_fn": datasets.get_training_eval_datasets,
        "verify_matching_vocabs_fn": datasets.verify_matching_vocabs,
        "inference_evaluator_cls": seqio_evaluator,
    }
    step, state = train(**train_runs.arguments(folder, **{**defaults, **changes}))
    return [step, digest.state_digest(digest.leaf_digests(jax.device_get(state.as_tree())))]


def outcome(call):
    try:
        return call()
    except errors.UserError as error:
        return f"{type(error).__name__}: {error}"


def evaluated(folder):
    validation = config("all_numbers", split="validation", shuffle=False)
    step, _ = trained(
        f"{folder}/evaluated",
        total_steps=2,
        train_eval_dataset_cfg=validation,
        infer_eval_dataset_cfg=validation,
        eval_steps=100,
        eval_period=2,
    )
    return step


def cut(folder):
    straight = trained(f"{folder}/straight", total_steps=5)
    for total_steps in (2, 5):
        last = trained(f"{folder}/cut", total_steps=total_steps)
    return [straight, last]


def own_pipeline(folder):
    """A tf.data.Dataset of a user's own making."""

    def get_dataset_fn(cfg, shard_id, num_shards, converter_cls):
        dataset = seqio.get_dataset("numbers", LENGTHS, converter_cls(pack=True), "train", num_epochs=None)
        return dataset.batch(cfg.batch_size)

    return [trained(f"{folder}/own", get_dataset_fn=get_dataset_fn, total_steps=steps) for steps in (2, 4)]


def order_of(seed):
    """Returns the inputs of the first batches."""
    dataset = datasets.get_dataset(config("numbers", seed=seed), 0, 1, seqio.EncDecFeatureConverter)
    return [b["encoder_input_tokens"].tolist() for b in itertools.islice(dataset.as_numpy_iterator(), 5)]


def vocabularies(folder):
    """The same model file at two paths, and another file at the same path."""
    from tests.t5core.data.test_vocabulary import train as train_vocabulary

    path, elsewhere = pathlib.Path(folder, "sp.model"), pathlib.Path(folder, "copy.model")
    path.write_bytes(train_vocabulary())
    shutil.copy(path, elsewhere)
    add("pieces", vocabulary=seqio.SentencePieceVocabulary(str(elsewhere), extra_ids=10))
    built = SentencePieceVocabulary(path.read_bytes(), extra_ids=10)
    same = build_model(ModelConfig(**tiny.SIZES), LossConfig(), input_vocabulary=built, output_vocabulary=built)
    small = outcome(lambda: datasets.verify_matching_vocabs(config("pieces"), same))
    large = ModelConfig(**{**tiny.SIZES, "vocab_size": 256})
    same = build_model(large, LossConfig(), input_vocabulary=built, output_vocabulary=built)
    equal = outcome(lambda: datasets.verify_matching_vocabs(config("pieces"), same))
    elsewhere.write_bytes(train_vocabulary(vocab_size=121))
    changed = outcome(lambda: datasets.verify_matching_vocabs(config("pieces"), same))
    other = outcome(lambda: datasets.verify_matching_vocabs(config("numbers"), same))
    return [small, equal, changed, other]


def main(folder):
    scenes = {
        "orders": lambda: [order_of(3) == order_of(3), order_of(3) == order_of(4)],
        "cut": lambda: cut(folder),
        "evaluated": lambda: evaluated(folder),
        "own pipeline": lambda: own_pipeline(folder),
        "unknown": lambda: outcome(lambda: trained(f"{folder}/x", train_dataset_cfg=config("nmbers"))),
        "few": lambda: outcome(lambda: trained(f"{folder}/few", train_dataset_cfg=config("few"))),
        "filtered": lambda: outcome(lambda: trained(f"{folder}/filtered", train_dataset_cfg=config("filtered"))),
        "module": lambda: outcome(
            lambda: trained(f"{folder}/m", train_dataset_cfg=config("x", module="nowhere.to.be"))
        ),
        "no split": lambda: list(
            datasets.get_training_eval_datasets(
                config("without_validation", split="validation"), 0, 1, 9, seqio.EncDecFeatureConverter
            )
        ),
        "vocabularies": lambda: vocabularies(folder),
    }
    for name, scene in scenes.items():
        sys.stdout.write(json.dumps({name: scene()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
