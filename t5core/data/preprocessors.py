"""SeqIO preprocessors: filters, templates, chunks, span corruption, UL2, prefix and full language modelling.

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5core.config.preprocessing_schema import UL2_DENOISERS, DenoiserConfig
from t5core.data import seqio_counts, templates
from t5core.data.chunks import FOLD, MAX_CHUNKS, SPREAD
from t5core.data.noise import CAPPED, SpanCorruption, noise_table, resolved_denoisers
from t5core.data.seqio_spans import number_of_sentinels, span_mask, with_sentinels

IDENTITY = "example_id"
_CHUNK, _SIZE, _DENOISER = "chunk", "size", "denoiser"

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


def drop_unless(dataset: tf.data.Dataset, *, keeps: Callable[[Example], Tensor], reason: str) -> tf.data.Dataset:
    """Returns the examples for which `keeps` gives true; the manifest counts the others under `reason`.

    Args:
      dataset: of any examples.
      keeps: gives a boolean scalar for an example.
      reason: why the others are left out.
    """
    return dataset.filter(lambda example: seqio_counts.keeps_or_counts(tf.cast(keeps(example), tf.bool), reason=reason))


def drop_by_length(
    dataset: tf.data.Dataset, *, feature: str, minimum: int = 0, maximum: int | None = None, reason: str
) -> tf.data.Dataset:
    """Returns the examples with `minimum` to `maximum` tokens of `feature`; the manifest counts the others.

    Args:
      dataset: tokenised.
      feature: whose tokens are counted, those of EOS too if it is there already.
      minimum: the fewest that stay.
      maximum: the most that stay; None: any number.
      reason: what the others are counted under.
    """

    def keeps(example: Example) -> Tensor:
        size = tf.size(example[feature])
        return (size >= minimum) & (size <= (maximum if maximum is not None else size))

    return drop_unless(dataset, keeps=keeps, reason=reason)


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
        noise_density=noise_density, mean_span_length=mean_noise_span_length, sentinels=number_of_sentinels(vocabulary)
    )
    length = noise.chunk_length(
        inputs_length=sequence_length["inputs"], targets_length=sequence_length["targets"], task=name
    )
    table = tf.constant(noise_table(noise, length), tf.int32)

    def corrupt(example: Example, seed: Tensor) -> Example:
        return _with_hidden_spans(example["targets"], table, seed=seed, first_sentinel=vocabulary.vocab_size - 1)

    return _map_with_seed(_padded_chunks(dataset, length=length), corrupt)


def _with_hidden_spans(tokens: Tensor, table: Tensor, *, seed: Tensor, first_sentinel: int) -> Example:
    """Returns inputs and targets of a text; `table`, int32[lengths, 3], has noise, spans and capped by length."""
    size = tf.size(tokens)
    noise, spans, capped = tf.unstack(table[size])
    seqio_counts.note(capped > 0, reason=CAPPED)
    hidden = span_mask(size, noise=noise, spans=spans, seed=seed)
    return {
        "inputs": with_sentinels(tokens, hidden, first_sentinel),
        "targets": with_sentinels(tokens, ~hidden, first_sentinel),
    }


def mixture_of_denoisers(
    dataset: tf.data.Dataset,
    sequence_length: Lengths,
    output_features: Features,
    *,
    denoisers: Sequence[DenoiserConfig] = UL2_DENOISERS,
    name: str = "mixture_of_denoisers",
) -> tf.data.Dataset:
    """Returns `inputs` and `targets` made from texts tokenised as `targets` by one of several denoisers each.

    A denoiser is drawn for each piece of a text, as often as its rate says, and the piece is as long as fits its inputs
    and targets, so that no token is lost. Its mode token comes first in the inputs.

    Args:
      dataset: of texts.
      sequence_length: lengths of inputs and targets.
      output_features: given by SeqIO; the vocabulary of `targets` spells the mode tokens and has the sentinels.
      denoisers: those of UL2 unless told otherwise.
      name: of the task, for messages.

    Raises:
      ConfigError: the vocabulary has no sentinels, cannot spell a mode token, or a length holds no corrupted text.

    Source: UL2 (arXiv:2205.05131, section 3.1). Deliberate differences: a sequential denoiser hides exactly its share,
    without a sentinel, and mode tokens are spelt by the vocabulary as any text is.
    """
    vocabulary = output_features["targets"].vocabulary
    mode_tokens = {d.mode_token: list(map(int, vocabulary.encode(d.mode_token))) for d in denoisers}
    resolved = resolved_denoisers(
        denoisers,
        spelt=mode_tokens,
        unk_id=vocabulary.unk_id,
        sentinels=number_of_sentinels(vocabulary),
        lengths=sequence_length,
        task=name,
    )
    modes, lengths = [each.mode for each in resolved], [each.length for each in resolved]
    tables = tf.constant([noise_table(each.noise, max(lengths)) for each in resolved], tf.int32)
    is_suffix = tf.constant([denoiser.noise == "suffix" for denoiser in denoisers])
    prefixes = tf.ragged.constant(modes, dtype=tf.int32)

    def corrupt(example: Example, seed: Tensor) -> Example:
        tokens, chosen = example["targets"], example[_DENOISER]
        table = tables[chosen]
        cut = tf.size(tokens) - table[tf.size(tokens), 0]
        sides = tf.cond(
            is_suffix[chosen],
            lambda: {"inputs": tokens[:cut], "targets": tokens[cut:]},
            lambda: _with_hidden_spans(tokens, table, seed=seed, first_sentinel=vocabulary.vocab_size - 1),
        )
        return {**sides, "inputs": tf.concat([prefixes[chosen], sides["inputs"]], 0)}

    pieces = _pieces(dataset, lengths=lengths, rates=[denoiser.rate for denoiser in denoisers])
    return _map_with_seed(pieces, corrupt)


def _pieces(dataset: tf.data.Dataset, *, lengths: Sequence[int], rates: Sequence[float]) -> tf.data.Dataset:
    """Returns padded pieces of texts with the number of the `denoiser` drawn for each, and of its length."""
    bounds = tf.cumsum(tf.constant(rates, tf.float32))
    by_denoiser = tf.constant(lengths, tf.int32)

    def cut(example: Example, seed: Tensor) -> Example:
        tokens = example["targets"]
        draws = tf.random.stateless_uniform([tf.size(tokens) // min(lengths) + 1], seed, alg="philox")
        chosen = tf.searchsorted(bounds, draws * bounds[-1], side="right")
        chosen = tf.minimum(chosen, len(lengths) - 1)
        ends = tf.cumsum(tf.gather(by_denoiser, chosen))
        starts = ends - tf.gather(by_denoiser, chosen)
        count = tf.math.count_nonzero(starts < tf.size(tokens), dtype=tf.int32)
        sizes = tf.minimum(ends, tf.size(tokens))[:count] - starts[:count]
        ragged: Any = tf.RaggedTensor
        rows = ragged.from_row_lengths(tokens, sizes).to_tensor(shape=[None, max(lengths)])
        pieces = {"targets": rows, _SIZE: sizes, _CHUNK: tf.range(count), _DENOISER: chosen[:count]}
        if IDENTITY in example:
            pieces[IDENTITY] = tf.fill([count], example[IDENTITY])
        return pieces

    whole = dataset.map(lambda example: {**example, _SIZE: tf.size(example["targets"]), _CHUNK: MAX_CHUNKS - 1})
    return _map_with_seed(whole, cut).unbatch()


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
    tokens = tf.cast(example["targets"], tf.int64)
    mixed = tokens * SPREAD[0] + tf.range(tf.size(tokens, tf.int64)) * SPREAD[1]
    content = tf.reduce_sum(tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, FOLD)) * SPREAD[2])
    document = tf.cast(example.get(IDENTITY, tf.constant(0, tf.int64)), tf.int64)
    return tf.stack([content, document * MAX_CHUNKS + tf.cast(example[_CHUNK], tf.int64)])
