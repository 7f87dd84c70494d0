"""The tokenizer beside an exported model: the pieces as they are, and where its sentinels stand."""

import io
import json

import sentencepiece

from t5core.config.edges import VocabularyRef
from t5core.importers import tokenizer_files


def test_pieces_and_sentinels_are_those_of_the_vocabulary(tmp_path):
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["one two three", "two three four"] * 20),
        model_writer=content,
        vocab_size=15,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (tmp_path / "mine.model").write_bytes(content.getvalue())
    reference = VocabularyRef(
        uri=str(tmp_path / "mine.model"), kind="sentencepiece", extra_ids=7, size=22, fingerprint="f"
    )
    tokenizer_files.write(str(tmp_path / "hf"), reference)
    assert (tmp_path / "hf" / "spiece.model").read_bytes() == content.getvalue()
    config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert (config["tokenizer_class"], config["extra_ids"]) == ("T5Tokenizer", 7)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
    special = [config["pad_token"], config["eos_token"], config["unk_token"]]
    assert [pieces.piece_to_id(piece) for piece in special] == [0, 1, 2]


def test_bytes_have_a_tokenizer_without_a_model(tmp_path):
    reference = VocabularyRef(uri="", kind="bytes", extra_ids=125, size=384, fingerprint="f")
    tokenizer_files.write(str(tmp_path), reference)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer_config.json"]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["tokenizer_class"], config["extra_ids"]) == ("ByT5Tokenizer", 125)
