"""The task of the benchmark as a user of SeqIO registers it, for SeqIO's cache script in an environment of its own.

Where text and vocabulary lie comes from the environment, as the script hands nothing on.
"""

import os

import seqio
import tensorflow as tf


def _two_columns(lines: tf.data.Dataset) -> tf.data.Dataset:
    def split(line: tf.Tensor) -> dict[str, tf.Tensor]:
        columns = tf.strings.split(line, "\t")
        return {"inputs": columns[0], "targets": columns[1]}

    return lines.map(split, num_parallel_calls=tf.data.AUTOTUNE)


_VOCABULARY = seqio.SentencePieceVocabulary(os.environ["BENCHMARK_MODEL"], extra_ids=100)

seqio.TaskRegistry.add(
    "benchmark",
    source=seqio.TextLineDataSource({"train": os.environ["BENCHMARK_FILES"]}, skip_header_lines=1),
    preprocessors=[
        _two_columns,
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos,
    ],
    output_features={side: seqio.Feature(_VOCABULARY, add_eos=True) for side in ("inputs", "targets")},
)
