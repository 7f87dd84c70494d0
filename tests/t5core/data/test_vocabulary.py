import io
import pathlib
import pickle
import re
import subprocess
import sys

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t5core import errors, sharing, storage
from t5core.config import load
from t5core.config.edges import DatasetRef
from t5core.config.schema import PretrainConfig
from t5core.data import manifest, vocabulary_training
from t5core.data.manifest import FeatureSpec, Manifest, SplitRecord, TaskShare
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary, load_vocabulary
from t5core.data.vocabulary_training import build_vocabulary
from t5core.data.vocabulary_verification import COVERAGE_FILE, coverage, rounded_size, verify_vocabulary
from t5core.lock import RunLock

WORDS = [begin + end for begin in "bdgkmnst" for end in ("alo", "eru")]
HARD = "Braces {}, a tab\t, a snowman ☃, 漢字, é as e\u0301, an emoji 🎉, a line\u2028separator\nand <extra_id_0> here"


def sentences():
    return [f"{a} {b}{a[:2]} {a}{b[:3]} {b[::-1]}{a[1:]}" for a in WORDS for b in WORDS]


def train(**settings):
    model = io.BytesIO()
    arguments = {"vocab_size": 120, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} | settings
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()), model_writer=model, minloglevel=2, **arguments
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def model():
    return train()


@pytest.fixture(scope="module")
def spelt_model():
    return train(vocab_size=400, byte_fallback=True)


def resolved(root, *, rows=512, text="corpus.txt", **settings):
    file = root / text
    if not file.exists():
        file.write_text("\n".join(sentences()) + "\n")
    config = {
        "run": {"root": str(root / "runs"), "name": "r"},
        "model": {"vocab_size": rows},
        "data": {
            "tasks": [{"name": "t", "files": [str(file)]}],
            "vocabulary": {
                "extra_ids": 100,
                **({} if settings.keys() & {"path", "kind"} else {"size": 400}),
                **settings,
            },
        },
    }
    return load.resolve(PretrainConfig.model_validate(config))


class TestSentencePiece:
    def test_sizes_and_special_ids(self, model):
        vocabulary = SentencePieceVocabulary(model, extra_ids=10)
        assert (vocabulary.vocab_size, vocabulary.extra_ids, vocabulary.pieces) == (130, 10, 120)
        assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)

    def test_sentinels_count_down_from_the_highest_id(self, model):
        vocabulary = SentencePieceVocabulary(model, extra_ids=10)
        assert [vocabulary.sentinel(index) for index in (0, 1, 9)] == [129, 128, 120]
        assert vocabulary.decode([129]) == "<extra_id_0>"
        assert vocabulary.decode([120]) == "<extra_id_9>"
        with pytest.raises(IndexError):
            vocabulary.sentinel(10)

    def test_a_model_may_bring_its_sentinels(self, model):
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        for index in reversed(range(10)):
            proto.pieces.add(piece=f"▁<extra_id_{index}>", score=0.0, type=proto.SentencePiece.USER_DEFINED)
        brought = SentencePieceVocabulary(proto.SerializeToString(), extra_ids=0)
        put_in = SentencePieceVocabulary(model, extra_ids=10)
        assert (brought.sentinels, brought.extra_ids, brought.vocab_size) == (10, 0, 130)
        assert brought.sentinel(3) == put_in.sentinel(3)
        with pytest.raises(errors.DataError) as caught:
            SentencePieceVocabulary(proto.SerializeToString(), extra_ids=10, origin="x.model")
        assert str(caught.value) == "x.model brings 10 sentinels of its own; set data.vocabulary.extra_ids=0"

    def test_sentinels_in_front_do_not_count(self):
        # SentencePiece puts a user's symbols in front of its own pieces; T5 looks for sentinels at the end.
        assert SentencePieceVocabulary(train(user_defined_symbols=["▁<extra_id_0>"]), extra_ids=0).sentinels == 0

    def test_text_survives_the_round_trip(self, spelt_model):
        vocabulary = SentencePieceVocabulary(spelt_model, extra_ids=0)
        for text in ("balo deru", "un{known} ☃ 漢字 🎉"):
            assert vocabulary.decode(vocabulary.encode(text)) == text

    def test_decoding_stops_at_eos_and_leaves_out_padding(self, model):
        vocabulary = SentencePieceVocabulary(model, extra_ids=10)
        ids = vocabulary.encode("balo deru")
        assert vocabulary.decode([*ids, 1, *ids]) == "balo deru"
        assert vocabulary.decode([0, *ids, 0, 0]) == "balo deru"

    def test_ids_beyond_the_vocabulary_are_unknown(self, model):
        vocabulary = SentencePieceVocabulary(model, extra_ids=10)
        assert vocabulary.decode([10_000]) == vocabulary.decode([2])

    def test_a_batch_is_encoded_as_one_by_one(self, model):
        vocabulary = SentencePieceVocabulary(model, extra_ids=10)
        assert vocabulary.encode_batch(["balo", "", "deru meru"]) == [
            vocabulary.encode(t) for t in ("balo", "", "deru meru")
        ]

    def test_equal_by_content(self, model):
        vocabulary = SentencePieceVocabulary(model, extra_ids=10, origin="here")
        assert vocabulary == SentencePieceVocabulary(bytes(model), extra_ids=10, origin="there")
        assert vocabulary != SentencePieceVocabulary(model, extra_ids=11)
        assert vocabulary != SentencePieceVocabulary(train(vocab_size=119), extra_ids=10)
        assert vocabulary != ByteVocabulary(extra_ids=10)

    def test_it_can_be_pickled(self, model):
        vocabulary = SentencePieceVocabulary(model, extra_ids=10)
        again = pickle.loads(pickle.dumps(vocabulary))
        assert again == vocabulary
        assert again.encode("balo") == vocabulary.encode("balo")

    @pytest.mark.parametrize("content", [b"", b"not a model", b"\x00\x01"])
    def test_what_is_no_model(self, content):
        with pytest.raises(errors.DataError) as caught:
            SentencePieceVocabulary(content, extra_ids=0, origin="x.model")
        assert str(caught.value) == "x.model is not a SentencePiece model; name a .model file"

    def test_other_special_ids_than_t5_s(self):
        foreign = train(pad_id=-1, unk_id=0, bos_id=1, eos_id=2)
        with pytest.raises(errors.DataError) as caught:
            SentencePieceVocabulary(foreign, extra_ids=0, origin="x.model")
        assert str(caught.value) == (
            "x.model has the ids pad=-1, eos=2, unk=0 (-1: none), but T5 needs 0, 1 and 2; "
            "train it with --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1"
        )


class TestBytes:
    def test_every_text_survives_the_round_trip(self):
        vocabulary = ByteVocabulary(extra_ids=125)
        assert vocabulary.vocab_size == 384
        assert vocabulary.encode("a☃") == [100, 0xE2 + 3, 0x98 + 3, 0x83 + 3]
        assert vocabulary.decode([*vocabulary.encode(HARD), 1, 100]) == HARD

    def test_sentinels_and_broken_characters_are_left_out(self):
        vocabulary = ByteVocabulary(extra_ids=125)
        assert vocabulary.decode([vocabulary.sentinel(0), 100, 0xE2 + 3, 2]) == "a"


class TestBuild:
    def test_training_twice_gives_the_same_bytes_and_the_second_is_reused(self, tmp_path):
        one, two = (
            build_vocabulary(resolved(tmp_path / place)) for place in ("one", "two") if not (tmp_path / place).mkdir()
        )
        assert one.reference.fingerprint == two.reference.fingerprint
        assert (one.reused, one.reason) == (False, "no vocabulary yet")
        again = build_vocabulary(resolved(tmp_path / "one"))
        assert again.reference == one.reference
        assert again.reused
        assert again.reason == f"fingerprint {one.reference.uri.split('-')[-1][:16]} unchanged"

    def test_the_reference_leads_to_the_vocabulary(self, tmp_path):
        built = build_vocabulary(resolved(tmp_path)).reference
        loaded = load_vocabulary(built)
        assert (built.kind, built.extra_ids, built.size) == ("sentencepiece", 100, 500)
        assert loaded.fingerprint == built.fingerprint
        assert loaded.decode(loaded.encode("balo ☃")) == "balo ☃"

    def test_it_learns_the_training_text_only(self, tmp_path):
        held = tmp_path / "held.txt"
        held.write_text("☃☃ balo\n" * 50)
        run = resolved(tmp_path, byte_fallback=False, character_coverage=1.0, size=200, rows=384)
        (task,) = run.config.data.tasks
        for given, known in (({"files": (*task.files, str(held))}, True), ({"validation_files": (str(held),)}, False)):
            changed = task.model_copy(update=given)
            built = vocabulary_training.train_vocabulary(
                run.config.run.root, [changed], run.config.data.vocabulary
            ).reference
            loaded = load_vocabulary(built)
            assert (loaded.unk_id not in loaded.encode("☃")) == known

    def test_what_changed_is_named(self, tmp_path):
        first = build_vocabulary(resolved(tmp_path)).reference
        (tmp_path / "corpus.txt").write_text("\n".join([*sentences(), "more text"]) + "\n")
        second = build_vocabulary(resolved(tmp_path))
        assert not second.reused
        assert second.reason == "no vocabulary of this data yet", "and that of other text explains nothing"
        assert first.uri != second.reference.uri
        third = build_vocabulary(resolved(tmp_path, character_coverage=1.0))
        assert third.reason == f"settings changed since fingerprint {second.reference.uri.split('-')[-1][:16]}"

    def test_another_number_of_sentinels_needs_no_training(self, tmp_path):
        first = build_vocabulary(resolved(tmp_path))
        second = build_vocabulary(resolved(tmp_path, extra_ids=10))
        assert second.reused
        assert second.reference.uri == first.reference.uri
        assert second.reference.size == 410
        assert second.reference.fingerprint != first.reference.fingerprint

    def test_a_model_from_a_file_is_kept_by_content(self, tmp_path, model):
        for name in ("a.model", "b.model"):
            (tmp_path / name).write_bytes(model)
        a, b = (
            build_vocabulary(resolved(tmp_path, rows=256, path=str(tmp_path / name))) for name in ("a.model", "b.model")
        )
        assert a.reference.fingerprint == b.reference.fingerprint
        assert a.reason == f"taken from {tmp_path}/a.model"
        (tmp_path / "a.model").write_bytes(train(vocab_size=119))
        changed = build_vocabulary(resolved(tmp_path, rows=256, path=str(tmp_path / "a.model")))
        assert changed.reference.fingerprint != a.reference.fingerprint
        assert load_vocabulary(a.reference).fingerprint == a.reference.fingerprint

    def test_bytes_need_no_file(self, tmp_path):
        built = build_vocabulary(resolved(tmp_path, rows=384, kind="bytes", extra_ids=125))
        assert built.reference.uri == ""
        assert load_vocabulary(built.reference) == ByteVocabulary(extra_ids=125)

    def test_a_changed_file_is_not_loaded(self, tmp_path):
        built = build_vocabulary(resolved(tmp_path)).reference
        (tmp_path / built.uri).write_bytes(train())
        found = SentencePieceVocabulary(train(), extra_ids=100).fingerprint
        with pytest.raises(errors.IntegrityError) as caught:
            load_vocabulary(built)
        assert str(caught.value) == (
            f"{built.uri} has changed: its fingerprint is {found}, expected {built.fingerprint}; "
            "put the old file back or start a new run"
        )

    def test_one_that_another_run_is_training_is_waited_for_and_taken(self, tmp_path, monkeypatch):
        built = build_vocabulary(resolved(tmp_path)).reference
        folder = pathlib.Path(built.uri).parent
        folder.rename(tmp_path / "aside")
        other = RunLock(str(folder.parents[1] / "made" / f"{folder.name}.lock"), owner="another run")
        other.acquire()

        def wait(seconds):
            (tmp_path / "aside").rename(folder)
            other.release()

        monkeypatch.setattr(sharing.time, "sleep", wait)
        found = build_vocabulary(resolved(tmp_path))
        assert (found.reused, found.reference) == (True, built)

    def test_one_that_is_altered_or_gone_is_made_again_and_says_why(self, tmp_path):
        built = build_vocabulary(resolved(tmp_path)).reference
        (tmp_path / built.uri).write_bytes(train())
        again = build_vocabulary(resolved(tmp_path))
        assert (again.reused, again.reason) == (
            False,
            f"the one there is damaged: {built.uri} has changed since it was written",
        )
        assert again.reference == built
        (tmp_path / built.uri).unlink()
        lost = build_vocabulary(resolved(tmp_path))
        assert (lost.reused, lost.reference) == (False, built)
        assert lost.reason.startswith("made on ")
        assert lost.reason.endswith(f"and gone from {built.uri.rpartition('/')[0]}")
        assert build_vocabulary(resolved(tmp_path)).reused

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (
                {"rows": 640},
                "model.vocab_size=640 is more than the 512 embedding rows that a vocabulary of 400 pieces + 100 extra "
                "ids has use for; leave model.vocab_size out, or change data.vocabulary",
            ),
            (
                {"rows": 384},
                "a vocabulary of 400 pieces + 100 extra ids = 500, rounded up to 512, does not fit the model's 384 "
                "embedding rows; set model.vocab_size=512 or change data.vocabulary",
            ),
            (
                {"extra_ids": 0},
                "task 't': span corruption needs sentinels, but data.vocabulary.extra_ids=0; set it to 100",
            ),
            (
                {"size": 5000, "rows": 5120},
                "data.vocabulary.size=5000 is more than the text gives, {limit} at most; lower it, or add text",
            ),
            (
                {"size": 20, "rows": 128},
                "data.vocabulary.size=20 does not even hold the single characters and bytes; raise it to {limit} at "
                "least, or lower data.vocabulary.character_coverage",
            ),
        ],
    )
    def test_what_cannot_work_is_said_in_one_line(self, tmp_path, settings, message):
        with pytest.raises(errors.ConfigError) as caught:
            build_vocabulary(resolved(tmp_path, **settings))
        (limit,) = re.findall(r"(\d+) at (?:most|least)", str(caught.value)) or [""]
        assert str(caught.value) == message.format(limit=limit)
        assert [path for path in (tmp_path / "runs").rglob("*") if path.is_file()] == []

    @pytest.mark.parametrize("size", [20, 5000])
    def test_the_size_that_is_told_instead_works(self, tmp_path, size):
        with pytest.raises(errors.ConfigError) as caught:
            build_vocabulary(resolved(tmp_path, size=size, rows=rounded_size(size, 100)))
        (told,) = map(int, re.findall(r"(\d+) at (?:most|least)", str(caught.value)))
        built = build_vocabulary(resolved(tmp_path, size=told, rows=rounded_size(told, 100)))
        assert built.reference.size == told + 100

    def test_a_model_that_is_not_there(self, tmp_path):
        with pytest.raises(errors.DataError) as caught:
            build_vocabulary(resolved(tmp_path, path=str(tmp_path / "no.model")))
        assert str(caught.value) == (
            f"cannot read the vocabulary {tmp_path}/no.model: No such file or directory; "
            "set data.vocabulary.path to a .model file"
        )

    def test_a_seqio_task_brings_its_own(self, tmp_path):
        run = resolved(tmp_path)
        data = {"tasks": [{"name": "registered"}], "module": "m", "vocabulary": {"size": 400}}
        config = PretrainConfig.model_validate({**run.config.model_dump(), "data": data})
        with pytest.raises(errors.ConfigError) as caught:
            build_vocabulary(load.resolve(config))
        assert str(caught.value) == (
            "data.vocabulary.path is missing, and the SeqIO task 'registered' has a vocabulary of its own; "
            "set data.vocabulary.path to its .model file, or data.vocabulary.kind=bytes"
        )


@pytest.mark.parametrize(
    ("pieces", "extra_ids", "rows"),
    [(1000, 0, 1024), (1000, 100, 1152), (32000, 100, 32128), (250000, 100, 250112), (259, 125, 384), (128, 0, 128)],
)
def test_sizes_are_rounded_to_128(pieces, extra_ids, rows):
    assert rounded_size(pieces, extra_ids) == rows


class TestVerify:
    """Datasets are stood in for by a manifest and the sample of characters beside it."""

    @pytest.fixture
    def run(self, tmp_path, model):
        (tmp_path / "x.model").write_bytes(model)
        return resolved(tmp_path, rows=256, path=str(tmp_path / "x.model"))

    def dataset(self, folder, vocabulary, *, unknown=0, characters=None, made_with=None):
        parts = {"vocabulary": made_with or vocabulary.fingerprint}
        record = SplitRecord(
            rows=1,
            features={"targets": FeatureSpec(dtype="uint16", length=8)},
            tokens={"targets": 1000},
            unknown_tokens=unknown,
        )
        described = Manifest(kind="task", name="t", fingerprint="f" * 16, parts=parts, splits={"train": record})
        storage.write_text(f"{folder}/{manifest.FILE_NAME}", manifest.render(described))
        sample = {"texts": 1, "tokens": 10, "unknown_tokens": 1, "characters": characters or {}}
        storage.write_json(f"{folder}/{COVERAGE_FILE}", sample)
        return DatasetRef(name="t", uri=str(folder), fingerprint="f" * 16, rows=1, reused=False, reason="")

    def test_what_fits(self, run, tmp_path):
        vocabulary = build_vocabulary(run).reference
        datasets = [self.dataset(tmp_path / "d", vocabulary, unknown=5, characters={"☃": 5})]
        report = verify_vocabulary(run, vocabulary, datasets)
        assert (report.pieces, report.extra_ids, report.rounded_size, report.embedding_rows) == (120, 100, 256, 256)
        assert report.unknown_rates == {"t": 0.005}
        assert report.unknown_characters == {"☃": 5}

    def test_too_much_is_unknown(self, run, tmp_path):
        vocabulary = build_vocabulary(run).reference
        datasets = [self.dataset(tmp_path / "d", vocabulary, unknown=20, characters={"{": 3, "☃": 15})]
        with pytest.raises(errors.DataError) as caught:
            verify_vocabulary(run, vocabulary, datasets)
        assert str(caught.value) == (
            "task 't': 2.00% of the tokens are unknown to the vocabulary, more than max_unknown_rate=1.00%; most often "
            "'☃' (SNOWMAN, 15 times), '{' (LEFT CURLY BRACKET, 3 times); set data.vocabulary.byte_fallback, "
            "raise character_coverage, or take another vocabulary"
        )

    def test_a_dataset_of_another_vocabulary(self, run, tmp_path):
        vocabulary = build_vocabulary(run).reference
        datasets = [self.dataset(tmp_path / "d", vocabulary, made_with="0" * 16)]
        with pytest.raises(errors.DataError) as caught:
            verify_vocabulary(run, vocabulary, datasets)
        assert str(caught.value) == (
            f"dataset {tmp_path}/d was made with vocabulary {'0' * 16}, but the run has {vocabulary.fingerprint}; "
            "materialise it again"
        )

    def mixture(self, folder, *, of):
        record = SplitRecord(rows=1, features={"targets": FeatureSpec(dtype="uint16", length=8)})
        share = TaskShare(
            fingerprint=of, requested_rate=1, realised_rate=1, reads=1, epochs=1, tokens={}, source=record
        )
        described = Manifest(
            kind="mixture", name="m", fingerprint="e" * 16, parts={}, splits={"train": record}, tasks={"t": share}
        )
        storage.write_text(f"{folder}/{manifest.FILE_NAME}", manifest.render(described))
        return DatasetRef(name="m", uri=str(folder), fingerprint="e" * 16, rows=1, reused=False, reason="")

    def test_a_mixture_is_judged_by_what_it_was_made_from(self, run, tmp_path):
        vocabulary = build_vocabulary(run).reference
        dataset = self.dataset(tmp_path / "d", vocabulary)
        whole = [dataset, self.mixture(tmp_path / "m", of=dataset.fingerprint)]
        assert verify_vocabulary(run, vocabulary, whole).unknown_rates == {"t": 0.0}
        with pytest.raises(errors.DataError) as caught:
            verify_vocabulary(run, vocabulary, [dataset, self.mixture(tmp_path / "n", of="0" * 16)])
        assert str(caught.value) == (
            f"mixture 'm' was made from dataset {'0' * 16} of task 't', which is not the run's; assemble it again"
        )

    def test_a_size_that_does_not_fit(self, run, tmp_path):
        vocabulary = build_vocabulary(run).reference
        wider = run.config.model.model_copy(update={"vocab_size": 384})
        with pytest.raises(
            errors.ConfigError, match=r"^model.vocab_size=384 is more than the 256 embedding rows that a vocabulary of"
        ):
            verify_vocabulary(
                run.model_copy(update={"config": run.config.model_copy(update={"model": wider})}), vocabulary, []
            )


def test_coverage_counts_what_cannot_be_spelt(model, spelt_model):
    texts = ["balo {} ☃☃ deru", "galo"]
    found = coverage(SentencePieceVocabulary(model, extra_ids=0), texts)
    assert found.texts == 2
    assert found.characters == {"☃": 2, "{": 1, "}": 1}
    assert 0 < found.unknown_tokens <= 4
    assert coverage(SentencePieceVocabulary(spelt_model, extra_ids=0), texts).unknown_tokens == 0
    assert coverage(ByteVocabulary(extra_ids=0), texts).unknown_tokens == 0


def test_tensorflow_is_not_needed():
    modules = "vocabulary, vocabulary_training, vocabulary_verification, materialise, sources"
    script = (
        f"import sys; from t5core.data import {modules}; print('tensorflow' in sys.modules, 'seqio' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output == "False False\n"
