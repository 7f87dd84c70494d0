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
from t5core.data.vocabulary_verification import (
    COVERAGE_FILE,
    check_embedding_rows,
    verify_vocabulary,
    with_embedding_rows,
)
from t5core.evaluation import task_metrics
from tests.t5core.data.task_runs import made, raw, request_of, run_of
from tests.t5core.data.test_vocabulary import WORDS, train

TEXT = "{a} b\n c\td 🎉 漢字 e\u0301 f\u2028g"


def settings(vocabulary, *, rows=None, parent=False):
    """Returns the settings of a run with that vocabulary, a model of so many rows, and a checkpoint to start from."""
    init = {"checkpoint": "runs/other/checkpoints/5", "step": "restart"} if parent else None
    return PretrainConfig.model_validate(
        {
            "run": {"init_from": init},
            "model": {"preset": "t5_1_1_small", "vocab_size": rows},
            "data": {
                "tasks": [{"name": "t", "files": ["x.txt"], "objective": "prefix_lm"}],
                "vocabulary": vocabulary,
            },
        }
    )


@pytest.mark.parametrize(
    ("extra_ids", "rows", "parent", "message"),
    [
        (0, 1024, False, None),
        (100, 1152, False, None),
        (0, 1152, False, "model.vocab_size=1152 is more than the 1024 embedding rows that a vocabulary of 1000 pieces"),
        (100, 1024, False, "a vocabulary of 1000 pieces + 100 extra ids = 1100, rounded up to 1152, does not fit the"),
        (100, 1100, False, "does not fit the model's 1100 embedding rows; set model.vocab_size=1152 or change data.vo"),
        (0, 1152, True, None),
        (100, 1100, True, None),
        (100, 1099, True, "does not fit the model's 1099 embedding rows; set model.vocab_size=1152 or change data.vo"),
    ],
)
def test_only_the_right_number_of_rows_passes_and_a_checkpoint_s_if_there_are_more(extra_ids, rows, parent, message):
    config = settings({"path": "x.model", "extra_ids": extra_ids}, rows=rows, parent=parent)
    if message is None:
        check_embedding_rows(config, pieces=1000, sentinels=extra_ids)
        return
    with pytest.raises(errors.ConfigError) as caught:
        check_embedding_rows(config, pieces=1000, sentinels=extra_ids)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("vocabulary", "rows"),
    [
        ({"size": 32000}, 32128),  # T5's own
        ({"size": 250100, "extra_ids": 0}, 250112),  # as many as mT5's
        ({"kind": "bytes", "extra_ids": 125}, 384),  # ByT5's
        ({"size": 385}, 512),
        ({"path": "PATH"}, 256),
    ],
)
def test_a_model_has_the_rows_that_its_vocabulary_needs(tmp_path, vocabulary, rows):
    (tmp_path / "a.model").write_bytes(train(vocab_size=120))
    named = {name: f"{tmp_path}/a.model" if value == "PATH" else value for name, value in vocabulary.items()}
    config = with_embedding_rows(settings(named))
    assert config.model.vocab_size == config.model.architecture().vocab_size == rows
    assert with_embedding_rows(settings(named, rows=4096)).model.vocab_size == 4096, "which is the user's word"


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
