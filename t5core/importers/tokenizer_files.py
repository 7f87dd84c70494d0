"""What transformers builds a tokenizer from, beside an exported model.

Source: the tokenizers in transformers/models/t5 and transformers/models/byt5, releases 4 and 5: the
sentinels `<extra_id_i>` stand behind the pieces there as here, the first of them last.
"""

from __future__ import annotations

from t5core import storage
from t5core.config.edges import VocabularyRef
from t5core.data.vocabulary import ByteVocabulary, read_model

MODEL_FILE, CONFIG_FILE = "spiece.model", "tokenizer_config.json"


def write(folder: str, vocabulary: VocabularyRef) -> None:
    """Writes the files of the tokenizer with the ids of `vocabulary` into `folder`.

    Raises:
      DataError: there is no file where the vocabulary should be.
      RunDirectoryError: no right to write there, or no space.
    """
    config = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "extra_ids": vocabulary.extra_ids}
    if vocabulary.kind == ByteVocabulary.kind:
        storage.write_json(f"{folder}/{CONFIG_FILE}", {**config, "tokenizer_class": "ByT5Tokenizer"})
        return
    storage.write_bytes(f"{folder}/{MODEL_FILE}", read_model(vocabulary.uri))
    # Not `legacy`: text behind a sentinel is cut as it is anywhere else.
    storage.write_json(f"{folder}/{CONFIG_FILE}", {**config, "tokenizer_class": "T5Tokenizer", "legacy": False})
