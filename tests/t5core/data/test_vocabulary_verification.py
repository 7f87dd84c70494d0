"""Does a vocabulary fit model, text and checkpoint? Sizes in pairs, characters, sentinels, texts read back."""

import json

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

from t5core import errors, storage
from t5core.config.schema import PretrainConfig
from t5core.data import manifest, vocabulary_verification
from t5core.data.examples import ExampleWriter
from t5core.data.ragged import Ragged
from t5core.data.shards import ShardRows
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary, load_vocabulary
from t5core.data.vocabulary_training import build_vocabulary
from t5core.data.vocabulary_verification import COVERAGE_FILE, check_embedding_rows, verify_vocabulary
from t5core.evaluation import task_metrics
from tests.t5core.data.task_runs import made, raw, request_of, run_of
from tests.t5core.data.test_vocabulary import WORDS, train

TEXT = "{a} b\n c\td 🎉 漢字 e\u0301 f\u2028g"


@pytest.mark.parametrize(
    ("extra_ids", "rows", "fits"), [(0, 1024, True), (100, 1152, True), (0, 1152, False), (100, 1024, False)]
)
def test_only_the_right_number_of_rows_passes(extra_ids, rows, fits):
    config = PretrainConfig.model_validate(
        {
            "model": {"vocab_size": rows},
            "data": {
                "tasks": [{"name": "t", "files": ["x.txt"], "objective": "prefix_lm"}],
                "vocabulary": {"path": "x.model", "extra_ids": extra_ids},
            },
        }
    )
    if fits:
        check_embedding_rows(config, pieces=1000, sentinels=extra_ids)
        return
    needed = {0: 1024, 100: 1152}[extra_ids]
    with pytest.raises(errors.ConfigError) as caught:
        check_embedding_rows(config, pieces=1000, sentinels=extra_ids)
    assert str(caught.value) == (
        f"a vocabulary of 1000 pieces + {extra_ids} extra ids = {1000 + extra_ids}, rounded up to {needed}, does not "
        f"fit the model's {rows} embedding rows; set model.vocab_size={needed} or change data.vocabulary"
    )


@pytest.mark.parametrize("token", [384, -1])
def test_a_token_beyond_the_rows_is_not_written(token):
    writer = ExampleWriter(ShardRows(), lengths={"targets": 4}, vocabulary=ByteVocabulary(extra_ids=125))
    writer.append({"targets": Ragged(values=np.array([3, 383]), sizes=np.array([2]))})
    with pytest.raises(errors.DataError) as caught:
        writer.append({"targets": Ragged(values=np.array([3, token]), sizes=np.array([2]))})
    assert str(caught.value) == (
        f"targets hold the token {token}, but the ids of the vocabulary go from 0 to 383; "
        "name the vocabulary that the tokens were made with"
    )


@pytest.fixture(scope="module")
def made_with(tmp_path_factory):
    root = tmp_path_factory.mktemp("unknown")
    (root / "x.model").write_bytes(train())
    pairs = [(f"{a} {b}", TEXT if a == b else a) for a in WORDS for b in WORDS]
    (root / "a.jsonl").write_text("".join(json.dumps({"q": q, "a": a}) + "\n" for q, a in pairs))
    task = {"name": "t", "files": [f"{root}/a.jsonl"], "objective": "supervised", "inputs": "{q}", "targets": "{a}"}
    task |= {"metrics": ["sequence_accuracy"], "validation_fraction": 0.5}
    settings = {"rows": 256, "vocabulary": {"path": f"{root}/x.model", "extra_ids": 100, "max_unknown_rate": 0.9}}
    run = run_of(root / "runs", [task], **settings)
    return run, request_of(run).vocabulary, made(root / "runs", [task], **settings)


@pytest.mark.xdist_group("seqio")
class TestUnknownCharacters:
    """Text that a vocabulary without byte fallback cannot spell, from files to the verdict."""

    def test_rate_and_worst_characters_are_reported(self, made_with):
        run, vocabulary, dataset = made_with
        report = verify_vocabulary(run, vocabulary, [dataset])
        assert 0 < report.unknown_rates["t"] < 0.9
        assert {"{", "}", "🎉", "漢", "字"} <= set(report.unknown_characters)
        assert report.changed_rates["t"] > 0

    def test_above_the_threshold_it_fails_and_names_them(self, made_with):
        run, vocabulary, dataset = made_with
        stricter = run.config.data.vocabulary.model_copy(update={"max_unknown_rate": 0.01})
        data = run.config.data.model_copy(update={"vocabulary": stricter})
        strict = run.model_copy(update={"config": run.config.model_copy(update={"data": data})})
        with pytest.raises(errors.DataError) as caught:
            verify_vocabulary(strict, vocabulary, [dataset])
        assert "of the tokens are unknown to the vocabulary, more than max_unknown_rate=1.00%; most often '" in str(
            caught.value
        )
        assert "\n" not in str(caught.value)

    def test_metrics_compare_raw_targets(self, made_with):
        run, reference, dataset = made_with
        targets = [example["targets_pretokenized"] for example in raw(dataset)]
        assert any("🎉" in target and "\n" in target and "\u2028" in target for target in targets)
        assert task_metrics.score(run.config.data, "t", dataset.uri, targets) == {"sequence_accuracy": 100.0}
        vocabulary = load_vocabulary(reference)
        through = [vocabulary.decode(vocabulary.encode(target)) for target in targets]
        assert task_metrics.score(run.config.data, "t", dataset.uri, through)["sequence_accuracy"] < 100


def with_pieces(*pieces):
    """Returns a model of 120 pieces with sentinels behind them in this order."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(train())
    for piece in pieces:
        proto.pieces.add(piece=piece, score=0.0, type=proto.SentencePiece.USER_DEFINED)
    return proto.SerializeToString()


class TestSentinels:
    def verdict(self, root, model, **settings):
        (root / "x.model").write_bytes(model)
        task = {"name": "t", "files": ["x.txt"], "objective": "prefix_lm"}
        vocabulary = {"path": f"{root}/x.model", "extra_ids": 0, **settings}
        run = run_of(root / "runs", [task], rows=128, vocabulary=vocabulary)
        return verify_vocabulary(run, build_vocabulary(run).reference, [])

    def test_in_order_they_pass(self, tmp_path):
        model = with_pieces("▁<extra_id_2>", "▁<extra_id_1>", "▁<extra_id_0>")
        assert self.verdict(tmp_path, model).sentinels == 3

    @pytest.mark.parametrize("pieces", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
    def test_out_of_order_they_are_refused(self, tmp_path, pieces):
        with pytest.raises(errors.DataError) as caught:
            self.verdict(tmp_path, with_pieces(*(f"▁<extra_id_{number}>" for number in pieces)))
        assert " sentinels out of order, '▁<extra_id_" in str(caught.value)
        assert "\n" not in str(caught.value)


class TestReadingBack:
    def test_what_normalisation_changes_is_counted_and_no_mistake(self):
        vocabulary = SentencePieceVocabulary(train(vocab_size=400, byte_fallback=True), extra_ids=10)
        found = vocabulary_verification.coverage(vocabulary, ["balo deru", "two  spaces", "a\nb", "ﬁ <extra_id_0> ½"])
        assert (found.read_back, found.changed, found.misread) == (4, 3, [])

    def test_a_vocabulary_that_reads_other_text_is_refused(self, tmp_path):
        class Upper(ByteVocabulary):
            def decode(self, ids):
                return super().decode(ids).upper()

        found = vocabulary_verification.coverage(Upper(extra_ids=125), ["ABC", "abc"])
        assert found.misread == [["abc", "ABC"]]
        run = run_of(tmp_path, [{"name": "t", "files": ["x.txt"]}])
        reference = build_vocabulary(run).reference
        dataset = self.dataset(tmp_path / "d", reference, found)
        with pytest.raises(errors.DataError) as caught:
            verify_vocabulary(run, reference, [dataset])
        assert str(caught.value) == (
            "task 't': the vocabulary reads 'abc' back as 'ABC', though it knows every character; "
            "take another vocabulary"
        )

    def dataset(self, folder, reference, found):
        record = manifest.SplitRecord(rows=1, features={}, tokens={"targets": 9})
        described = manifest.Manifest(
            kind="task",
            name="t",
            fingerprint="f" * 16,
            parts={"vocabulary": reference.fingerprint},
            splits={"train": record},
        )
        storage.write_text(f"{folder}/{manifest.FILE_NAME}", manifest.render(described))
        storage.write_json(f"{folder}/{COVERAGE_FILE}", found.model_dump())
        return manifest.reference(str(folder), described, reused=False, reason="")


def test_the_same_content_elsewhere_is_the_same_and_other_content_in_place_is_not(tmp_path):
    """Overwritten between materialisation and training it is refused; copied it is accepted."""
    task = {"name": "t", "files": ["x.txt"], "objective": "prefix_lm"}

    def reference(file):
        settings = {"path": f"{tmp_path}/{file}", "extra_ids": 10}
        return build_vocabulary(run_of(tmp_path / "runs", [task], rows=256, vocabulary=settings)).reference

    (tmp_path / "sp.model").write_bytes(train())
    (tmp_path / "copy.model").write_bytes(train())
    first, copied = reference("sp.model"), reference("copy.model")
    assert first.fingerprint == copied.fingerprint
    proto = sentencepiece_model_pb2.ModelProto.FromString(train())
    proto.pieces[50].score -= 1
    (tmp_path / "sp.model").write_bytes(proto.SerializeToString())
    second = reference("sp.model")
    assert (second.size, second.extra_ids) == (first.size, first.extra_ids)
    assert second.fingerprint != first.fingerprint
    dataset = TestReadingBack().dataset(
        tmp_path / "d",
        first,
        vocabulary_verification.coverage(load_vocabulary(first), ["balo"]),
    )
    run = run_of(tmp_path / "runs", [task], rows=256, vocabulary={"path": f"{tmp_path}/sp.model", "extra_ids": 10})
    verify_vocabulary(run, copied, [dataset])
    with pytest.raises(errors.DataError, match=f"was made with vocabulary {first.fingerprint}, but the run has "):
        verify_vocabulary(run, second, [dataset])
