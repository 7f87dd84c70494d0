"""SeqIO preprocessors: templates, chunks, span corruption, prefix and full language modelling.

Each takes and gives a `tf.data.Dataset`, as SeqIO expects, and can stand in any Task:

    preprocessors=[
        functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
        functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
        preprocessors.span_corruption,
        seqio.preprocessors.append_eos,
    ]

What is random in them follows from SeqIO's seed and from the example itself: its tokens, its number `example_id` in the
corpus if the source gives one, and the number of the chunk. Workers, shards and the order of reading do not matter. The
same text in two examples is masked alike unless they have an `example_id`. Another seed gives another pass; several
epochs of one `get_dataset` repeat the noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import seqio
import tensorflow as tf

from t5core.data import templates
from t5core.data.noise import SpanCorruption
from t5core.data.vocabulary import own_sentinels

IDENTITY = "example_id"
_CHUNK, _SIZE = "chunk", "size"
_MAX_CHUNKS = 1 << 24

# TensorFlow's stubs know too little of tensors: no operators, and too few arguments of `map`.
Tensor = Any
Example = dict[str, Tensor]
Features = Mapping[str, seqio.Feature]
Lengths = Mapping[str, int]


def supervised_template(dataset: tf.data.Dataset, *, inputs: str, targets: str) -> tf.data.Dataset:
    """Returns examples of the texts `inputs` and `targets`, made from the columns that the templates name.

    Raises:
      ConfigError: a template is malformed.
    """
    pieces = {
        "inputs": templates.parse(inputs, setting="inputs"),
        "targets": templates.parse(targets, setting="targets"),
    }

    def fill(example: Example) -> Example:
        return {side: _joined(parts, example) for side, parts in pieces.items()}

    return dataset.map(fill, num_parallel_calls=tf.data.AUTOTUNE)


def _joined(pieces: tuple[templates.Piece, ...], example: Example) -> Tensor:
    texts = []
    for literal, column in pieces:
        texts.append(tf.constant(literal))
        if column is not None:
            value = example[column]
            texts.append(value if value.dtype == tf.string else tf.strings.as_string(value))
    return tf.strings.join(texts)


def chunk(dataset: tf.data.Dataset, *, length: int, feature: str = "targets") -> tf.data.Dataset:
    """Returns one example for each run of `length` tokens of `feature`, the last one of a text being shorter.

    No token is dropped, and none is in two chunks; a text without tokens gives no example. The other features but
    `example_id` are left out, and `chunk` counts within a text.
    """
    return _padded_chunks(dataset, length=length, feature=feature).map(
        functools.partial(_without_padding, feature=feature)
    )


def _padded_chunks(dataset: tf.data.Dataset, *, length: int, feature: str = "targets") -> tf.data.Dataset:
    """Returns chunks that are filled up to `length`, with their true `size`: one map less where another follows."""
    assert length > 0, f"chunks of {length} tokens"

    def cut(example: Example) -> Example:
        tokens = example[feature]
        count = (tf.size(tokens) + length - 1) // length
        numbers = tf.range(count)
        rows = {
            feature: tf.reshape(tf.pad(tokens, [(0, count * length - tf.size(tokens))]), [count, length]),
            _SIZE: tf.minimum(tf.size(tokens) - numbers * length, length),
            _CHUNK: numbers,
        }
        if IDENTITY in example:
            rows[IDENTITY] = tf.fill([count], example[IDENTITY])
        return rows

    return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _without_padding(example: Example, *, feature: str = "targets") -> Example:
    others = {name: value for name, value in example.items() if name != _SIZE}
    return {**others, feature: example[feature][: example[_SIZE]]}


def span_corruption(
    dataset: tf.data.Dataset,
    sequence_length: Lengths,
    output_features: Features,
    *,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    name: str = "span_corruption",
) -> tf.data.Dataset:
    """Returns corrupted `inputs` and the hidden spans as `targets`, from texts tokenised as `targets`, without EOS.

    Exactly `noise_density` of the tokens is hidden, rounded to whole tokens, in spans that are `mean_noise_span_length`
    long on average. In the inputs each span is one sentinel, the first the highest id and then descending; the targets
    give each sentinel and what it hides. Longer texts are cut into chunks which, once EOS is appended, fill the inputs.

    Args:
      dataset: of examples with tokens under `targets`.
      sequence_length: lengths of inputs and targets with EOS; given by SeqIO.
      output_features: given by SeqIO; the vocabulary of `targets` has the sentinels.
      noise_density: share of the tokens that is hidden.
      mean_noise_span_length: tokens in a hidden span, on average.
      name: of the task, for messages.

    Raises:
      ConfigError: the vocabulary has no sentinels, or the targets do not fit.

    Source: `span_corruption` of T5 (arXiv:1910.10683, section 3.1.4). Deliberate differences: texts are not strung
      together first, which packing makes up for, and spans never outnumber the sentinels.
    """
    vocabulary = output_features["targets"].vocabulary
    noise = SpanCorruption(
        noise_density=noise_density, mean_span_length=mean_noise_span_length, sentinels=_sentinels(vocabulary)
    )
    length = noise.chunk_length(
        inputs_length=sequence_length["inputs"], targets_length=sequence_length["targets"], task=name
    )
    counts = tf.constant([noise.counts(n) for n in range(length + 1)], tf.int32)

    def corrupt(example: Example, seed: Tensor) -> Example:
        tokens = example["targets"]
        hidden = _span_mask(tf.size(tokens), counts=counts, seed=seed)
        first_sentinel = vocabulary.vocab_size - 1
        return {
            "inputs": _with_sentinels(tokens, hidden, first_sentinel),
            "targets": _with_sentinels(tokens, ~hidden, first_sentinel),
        }

    return _map_with_seed(_padded_chunks(dataset, length=length), corrupt)


def prefix_lm(dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features) -> tf.data.Dataset:
    """Returns the beginning of a text as `inputs` and the rest as `targets`, from texts tokenised as `targets`.

    The cut is uniform among those that leave a token on each side and fit both lengths with EOS. Longer texts are cut
    into chunks first; a chunk of one token has empty inputs.

    Source: the prefix language modelling of T5 (arXiv:1910.10683, section 3.2.3). Deliberate difference: neither side
      is ever trimmed, so that no token is lost.
    """
    room = {side: sequence_length[side] - output_features[side].add_eos for side in ("inputs", "targets")}

    def split(example: Example, seed: Tensor) -> Example:
        tokens = example["targets"]
        size = tf.size(tokens)
        lowest = tf.maximum(tf.minimum(1, size - 1), size - room["targets"])
        highest = tf.maximum(lowest, tf.minimum(size - 1, room["inputs"]))
        cut = tf.random.stateless_uniform([], seed, lowest, highest + 1, tf.int32, alg="philox")
        return {"inputs": tokens[:cut], "targets": tokens[cut:]}

    return _map_with_seed(_padded_chunks(dataset, length=room["inputs"] + room["targets"]), split)


def full_lm(dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features) -> tf.data.Dataset:
    """Returns texts as `targets` alone, from texts tokenised as `targets`, cut where they are too long.

    EOS comes at the end of a text, not of each chunk, so nothing is to be appended afterwards.

    Source: `full_lm` of T5, without its concatenation of texts, which packing makes up for.
    """
    feature = output_features["targets"]
    ending = tf.fill([int(feature.add_eos)], feature.vocabulary.eos_id)

    def close(example: Example) -> Example:
        return {**example, "targets": tf.concat([example["targets"], ending], 0)}

    closed = dataset.map(close, num_parallel_calls=tf.data.AUTOTUNE)
    return chunk(closed, length=sequence_length["targets"]).map(lambda example: {"targets": example["targets"]})


def _map_with_seed(dataset: tf.data.Dataset, function: Callable[[Example, Tensor], Example]) -> tf.data.Dataset:
    """Maps `function(example, seed)` over padded chunks, with a seed int64[2] from SeqIO's seed and the example."""
    draw: Any = seqio.map_over_dataset(lambda _, seed: tf.stack([seed[0], seed[1]]), num_seeds=1)

    def mapped(drawn: Tensor) -> tf.data.Dataset:
        def seeded(padded: Example) -> Example:
            example = _without_padding(padded)
            return function(example, drawn ^ _identity_of(example))

        return dataset.map(seeded, num_parallel_calls=tf.data.AUTOTUNE)

    # A data set of one seed, so that it is drawn anew whenever the whole is read without a seed given, as SeqIO does.
    return draw(tf.data.Dataset.from_tensors(0)).flat_map(mapped)


def _identity_of(example: Example) -> Tensor:
    """Returns int64[2] that tells examples apart: a hash of the tokens, and where in the corpus they stand."""
    content = tf.bitcast(tf.fingerprint(example["targets"][tf.newaxis])[0], tf.int64)
    document = tf.cast(example.get(IDENTITY, tf.constant(0, tf.int64)), tf.int64)
    return tf.stack([content, document * _MAX_CHUNKS + tf.cast(example[_CHUNK], tf.int64)])


def _sentinels(vocabulary: seqio.Vocabulary) -> int:
    """Returns how many sentinels there are, also where the model file brings them."""
    if vocabulary.extra_ids or not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return vocabulary.extra_ids
    model = vocabulary.tokenizer
    return own_sentinels(model.IdToPiece(number) for number in reversed(range(model.GetPieceSize())))


def _span_mask(size: Tensor, *, counts: Tensor, seed: Tensor) -> Tensor:
    """Returns bool[size], True where a token is hidden: spans of random lengths, the first token being kept."""
    noise, spans = counts[size, 0], counts[size, 1]
    draws = tf.random.stateless_uniform([size], seed, alg="philox")
    hidden = _random_parts(noise, spans, draws=draws[:noise])
    kept = _random_parts(size - noise, spans, draws=draws[noise:])
    lengths = tf.reshape(tf.stack([kept, hidden], axis=1), [-1])
    flags = tf.range(2 * tf.maximum(spans, 1)) % 2 == 1
    return tf.repeat(flags, lengths)


def _random_parts(total: Tensor, parts: Tensor, *, draws: Tensor) -> Tensor:
    """Returns int32[parts] (one part at least) that sum to `total`, any such with 1 or more each as likely as another.

    The cuts go where the largest of `draws`, float32[total], are; the last one is left out.
    """
    cuts = 1 + tf.sort(tf.math.top_k(draws[: total - 1], tf.maximum(parts - 1, 0)).indices)
    return tf.concat([cuts, [total]], 0) - tf.concat([[0], cuts], 0)


def _with_sentinels(tokens: Tensor, replaced: Tensor, first_sentinel: int) -> Tensor:
    """Returns `tokens` with each run where `replaced` holds made into one sentinel, counted down from the first."""
    starts = replaced & tf.logical_not(tf.concat([[False], replaced[:-1]], 0))
    sentinels = first_sentinel + 1 - tf.cumsum(tf.cast(starts, tokens.dtype))
    return tf.boolean_mask(tf.where(starts, sentinels, tokens), starts | ~replaced)
