"""Token ids as text in which everything shows: sentinels, the end of a sequence, line breaks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary

_VISIBLE = str.maketrans({"\n": "\\n", "\t": "\\t", "\r": "\\r"})
_END = "</s>"


def spell(ids: Iterable[int], vocabulary: SentencePieceVocabulary | ByteVocabulary) -> str:
    """Returns the text of `ids` on one line: `<extra_id_0>` for a sentinel, `</s>` where the sequence ends."""
    tokens = [int(token) for token in ids]
    ended = vocabulary.eos_id in tokens
    content = list(itertools.takewhile(lambda token: token != vocabulary.eos_id, tokens))
    text = _bytes(content, vocabulary) if isinstance(vocabulary, ByteVocabulary) else vocabulary.decode(content)
    return text.translate(_VISIBLE) + (_END if ended else "")


def _bytes(ids: list[int], vocabulary: ByteVocabulary) -> str:
    """Spells bytes with their sentinels, which decoding leaves out."""
    first = vocabulary.vocab_size - vocabulary.sentinels
    parts = []
    for is_sentinel, run in itertools.groupby(ids, key=lambda token: token >= first):
        if is_sentinel:
            parts += [f"<extra_id_{vocabulary.vocab_size - 1 - token}>" for token in run]
        else:
            parts.append(vocabulary.decode(run))
    return "".join(parts)
