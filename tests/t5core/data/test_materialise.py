import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from t5core import errors
from t5core.config import load
from t5core.config.schema import PretrainConfig
from t5core.data import materialise, store, worker
from t5core.data.materialise import materialise_task
from t5core.data.tokenising import Tokenising
from t5core.data.vocabulary import load_vocabulary
from t5core.evaluation import task_metrics
from tests.t5core.data.task_runs import made, raw, request_of, rows_of, run_of

pytestmark = pytest.mark.xdist_group("seqio")

EOS = 1


def sentences(count, seed=0):
    draw = random.Random(seed)
    words = [begin + end for begin in "bdfgklmnprst" for end in ("alo", "eru", "inda", "ox")]
    return [" ".join(draw.choices(words, k=draw.randint(3, 60))) for _ in range(count)]


def content(row):
    """Returns the tokens of a row without its padding."""
    return [int(token) for token in row if token]


def no_worker(*args, **kwargs):
    raise AssertionError("the worker was started")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two sources, and a vocabulary trained on them."""
    worker.start()
    root = tmp_path_factory.mktemp("data")
    texts = sentences(300)
    (root / "text.txt").write_text("\n".join([*texts, *texts[:20]]) + "\n")
    lines = [json.dumps({"q": f"{text[:30]} {n}", "a": f"{text[:20]} {{☃}}\t{n}"}) for n, text in enumerate(texts)]
    (root / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return root


def text_task(folder, **settings):
    return {"name": "text", "files": [str(folder / "text.txt")], "validation_fraction": 0.1, **settings}


def rows_task(folder, **settings):
    templates = {"objective": "supervised", "inputs": "ask: {q}", "targets": "{a}", "metrics": ["sequence_accuracy"]}
    return {"name": "rows", "files": [str(folder / "rows.jsonl")], "validation_fraction": 0.1, **templates, **settings}


SPELT = {"size": 400, "extra_ids": 100}


@pytest.fixture(scope="module")
def both(folder):
    """Both tasks with two passes."""
    run = run_of(folder / "runs", [text_task(folder), rows_task(folder)], rows=512, vocabulary=SPELT, passes=2)
    return {name: materialise_task(request_of(run, name)) for name in ("text", "rows")}, request_of(run)


class TestSpanCorruption:
    def test_each_pass_holds_every_token_under_its_own_noise(self, both):
        datasets, request = both
        record = store.read_manifest(datasets["text"].uri).splits["train"]
        rows = rows_of(datasets["text"])
        first = record.pass_rows[0]
        assert record.pass_rows == (first, first)
        assert record.rows == datasets["text"].rows == 2 * first
        assert not np.array_equal(rows["inputs"][:first], rows["inputs"][first:])
        vocabulary = load_vocabulary(request.vocabulary)
        lowest = vocabulary.sentinel(vocabulary.sentinels - 1)

        def tokens(begin, end):
            sides = np.concatenate([rows["inputs"][begin:end], rows["targets"][begin:end]], axis=1)
            return np.sort(sides[(sides > EOS) & (sides < lowest)])

        assert np.array_equal(tokens(0, first), tokens(first, 2 * first))

    def test_every_side_ends_with_eos_and_full_chunks_fill_the_inputs(self, both):
        rows = rows_of(both[0]["text"])
        assert all(content(row)[-1] == EOS for side in ("inputs", "targets") for row in rows[side])
        assert max(len(content(row)) for row in rows["inputs"]) == 48

    def test_the_manifest_counts(self, both):
        manifest = store.read_manifest(both[0]["text"].uri)
        rows = rows_of(both[0]["text"])
        record = manifest.splits["train"]
        assert record.tokens == {side: int(np.count_nonzero(rows[side])) for side in rows}
        assert record.truncated == {}
        assert (record.dropped, record.unknown_tokens) == ({}, 0)
        assert manifest.parts["vocabulary"] == both[1].vocabulary.fingerprint
        assert manifest.parts["seed"] == "0"

    def test_validation_text_is_never_trained_on(self, both, folder):
        datasets, request = both
        vocabulary = load_vocabulary(request.vocabulary)

        def texts(split):
            """Joins what each row hides into its inputs, and reads it; long texts come in several rows."""
            found = []
            rows = rows_of(datasets["text"], split)
            for inputs, targets in zip(rows["inputs"], rows["targets"], strict=True):
                hidden, current = {}, None
                for token in content(targets)[:-1]:
                    if token >= vocabulary.pieces:
                        current = hidden.setdefault(token, [])
                    else:
                        current.append(token)
                whole = [t for token in content(inputs)[:-1] for t in hidden.get(token, [token])]
                found.append(vocabulary.decode(whole))
            return found

        held, trained = set(texts("validation")), set(texts("train"))
        assert held
        assert not held & trained
        lines = (folder / "text.txt").read_text().splitlines()
        assert all(any(piece in line for line in lines) for piece in held)


class TestSupervised:
    def test_rows_are_the_ids_of_the_filled_templates(self, both):
        datasets, request = both
        vocabulary = load_vocabulary(request.vocabulary)
        rows, texts = rows_of(datasets["rows"], "validation"), raw(datasets["rows"])
        assert len(texts) == len(rows["inputs"]) > 10
        for number, example in enumerate(texts):
            for side, length in (("inputs", 48), ("targets", 32)):
                expected = [*vocabulary.encode(example[f"{side}_pretokenized"])[: length - 1], EOS]
                assert content(rows[side][number]) == expected

    def test_raw_texts_are_kept_as_they_were(self, both):
        texts = raw(both[0]["rows"])
        assert all(set(example) == {"inputs_pretokenized", "targets_pretokenized"} for example in texts)
        assert all(example["inputs_pretokenized"].startswith("ask: ") for example in texts)
        assert all("{☃}\t" in example["targets_pretokenized"] for example in texts)

    def test_held_out_questions_are_not_trained_on(self, both):
        rows = [rows_of(both[0]["rows"], split)["inputs"] for split in ("train", "validation")]
        train, held = ({tuple(content(row)) for row in side} for side in rows)
        assert held
        assert not train & held

    def test_nothing_random_means_no_seed(self, both):
        assert "seed" not in store.read_manifest(both[0]["rows"].uri).parts

    def test_truncation_keeps_eos_and_is_counted(self, tmp_path):
        (tmp_path / "a.tsv").write_text(
            "inputs\ttargets\na\t" + "x" * 31 + "\nb\t" + "y" * 32 + "\nc\t" + "z" * 300 + "\n"
        )
        task = {"name": "t", "files": [str(tmp_path / "a.tsv")], "objective": "supervised", "validation_fraction": 0}
        dataset = made(tmp_path, [task], allow_missing_split=True)
        targets = [content(row) for row in rows_of(dataset)["targets"]]
        assert [len(row) for row in targets] == [32, 32, 32]
        assert [row.count(EOS) for row in targets] == [1, 1, 1]
        assert all(row[-1] == EOS for row in targets)
        assert store.read_manifest(dataset.uri).splits["train"].truncated == {"targets": 2}

    def test_metrics_compare_raw_targets(self, both):
        datasets, request = both
        data = request.run.config.data
        targets = [example["targets_pretokenized"] for example in raw(datasets["rows"])]
        assert task_metrics.score(data, "rows", datasets["rows"].uri, targets) == {"sequence_accuracy": 100.0}
        vocabulary = load_vocabulary(request.vocabulary)
        through = [vocabulary.decode(vocabulary.encode(target)) for target in targets]
        assert task_metrics.score(data, "rows", datasets["rows"].uri, through) == {"sequence_accuracy": 0.0}

    def test_more_predictions_than_examples(self, both):
        datasets, request = both
        count = len(raw(datasets["rows"]))
        with pytest.raises(
            errors.IntegrityError, match=rf"holds {count} examples, but there are {count + 1} predictions"
        ):
            task_metrics.score(request.run.config.data, "rows", datasets["rows"].uri, [""] * (count + 1))


@pytest.mark.parametrize(("objective", "sides"), [("prefix_lm", ["inputs", "targets"]), ("lm", ["targets"])])
def test_language_modelling_loses_no_token(tmp_path, objective, sides):
    (tmp_path / "a.txt").write_text("\n".join(sentences(20)) + "\n")
    task = {"name": "t", "files": [str(tmp_path / "a.txt")], "objective": objective, "validation_fraction": 0}
    settings = {"preset": "t5_1_1_tiny", "family": "decoder_only", "vocab_size": 384}
    config = run_of(tmp_path, [task], allow_missing_split=True).config.model_dump()
    run = load.resolve(PretrainConfig.model_validate({**config, "model": settings}))
    rows = rows_of(materialise_task(request_of(run)))
    assert sorted(rows) == sides
    text = b"".join(line.encode() for line in sentences(20))
    whole = np.concatenate([rows[side].astype(int) for side in sides], axis=1).ravel()
    assert bytes((whole[whole >= 3] - 3).tolist()) == text


class TestReuse:
    def test_the_second_time_needs_no_worker(self, both, monkeypatch):
        datasets, request = both
        monkeypatch.setattr(worker, "start", no_worker)
        again = materialise_task(request)
        assert (again.uri, again.fingerprint, again.rows) == (
            datasets["text"].uri,
            datasets["text"].fingerprint,
            datasets["text"].rows,
        )
        assert again.reused
        assert again.reason == f"fingerprint {again.fingerprint} unchanged"
        assert not datasets["text"].reused
        assert datasets["text"].reason == "no dataset yet"

    def test_the_second_time_needs_no_tensorflow(self, both):
        _, request = both
        script = (
            "import sys; from t5core.data import materialise; from t5core.config.edges import TaskRequest\n"
            "found = materialise.materialise_task(TaskRequest.model_validate_json(sys.stdin.read()))\n"
            "print(found.reused, *({'tensorflow', 'seqio', 'jax'} & set(sys.modules)))"
        )
        output = subprocess.run(
            [sys.executable, "-c", script], input=request.model_dump_json(), capture_output=True, text=True, check=True
        )
        assert output.stdout == "True\n"

    def test_the_same_data_elsewhere_gives_the_same_bytes(self, both, folder, tmp_path):
        datasets, _ = both
        for name in ("text.txt", "rows.jsonl"):
            (tmp_path / name).write_bytes((folder / name).read_bytes())
        tasks = [text_task(tmp_path), rows_task(tmp_path)]
        there = made(tmp_path / "other", tasks, rows=512, vocabulary=SPELT, passes=2, train={"total_steps": 7})
        assert there.fingerprint == datasets["text"].fingerprint
        one, two = (store.read_manifest(dataset.uri).files for dataset in (datasets["text"], there))
        assert one == two

    def test_what_changed_is_found_and_named(self, both, folder, monkeypatch):
        """The fingerprint decides before the worker is asked, so that nothing has to be made here."""
        datasets, _ = both
        asked = []
        monkeypatch.setattr(Tokenising, "complete", lambda self: asked.append(self.uri))
        monkeypatch.setattr(materialise.gathering, "gather", lambda *args, **kwargs: None)
        monkeypatch.setattr(materialise.manifest, "reference", lambda uri, manifest, *, reused, reason: reason)
        tasks = [text_task(folder), rows_task(folder)]
        usual = {"rows": 512, "vocabulary": SPELT, "passes": 2}

        def reason(name, tasks=tasks, **changes):
            run = run_of(folder / "runs", tasks, **(usual | changes))
            return materialise_task(request_of(run, name))

        old = {name: dataset.fingerprint for name, dataset in datasets.items()}
        assert reason("text", seed=1) == f"seed changed since fingerprint {old['text']}"
        assert reason("text", passes=3) == f"passes changed since fingerprint {old['text']}"
        lengths = {"inputs": 40, "targets": 32}
        assert reason("rows", feature_lengths=lengths) == f"feature_lengths changed since fingerprint {old['rows']}"
        denser = [text_task(folder, noise_density=0.2), rows_task(folder)]
        assert reason("text", denser) == f"objective changed since fingerprint {old['text']}"
        other = [text_task(folder), rows_task(folder, inputs="{q}")]
        assert reason("rows", other) == f"objective changed since fingerprint {old['rows']}"
        fewer = {**SPELT, "extra_ids": 90}
        assert reason("text", vocabulary=fewer) == f"vocabulary changed since fingerprint {old['text']}"
        assert len(asked) == 6
        assert all(uri.startswith(f"{folder}/runs/datasets/") for uri in asked)

    def test_a_line_more_is_other_data(self, tmp_path):
        file = tmp_path / "a.tsv"
        file.write_text("inputs\ttargets\n" + "".join(f"{n}\t{n}\n" for n in range(9)))
        task = {"name": "t", "files": [str(file)], "objective": "supervised"}
        first = made(tmp_path, [task])
        file.write_text(file.read_text() + "9\t9\n")
        second = made(tmp_path, [task])
        assert second.rows == first.rows + 1
        assert second.reason == f"data changed since fingerprint {first.fingerprint}"

    def test_what_changes_nothing(self, both, folder, monkeypatch):
        datasets, _ = both
        monkeypatch.setattr(worker, "start", no_worker)
        tasks = [text_task(folder, rate=0.9), rows_task(folder, metrics=["chrf"], rate=0.1)]
        changes = {"train": {"total_steps": 5}, "shuffle": False, "pack": False}
        run = run_of(folder / "runs", tasks, rows=512, vocabulary=SPELT, passes=2, seed=0, **changes)
        assert {name: materialise_task(request_of(run, name)).uri for name in datasets} == {
            name: dataset.uri for name, dataset in datasets.items()
        }


class TestRefusals:
    """What is wrong is said in one line, in seconds, and leaves nothing behind."""

    @pytest.fixture
    def file(self, tmp_path):
        (tmp_path / "a.txt").write_text("some text\nmore text\n")
        return str(tmp_path / "a.txt")

    def refusal(self, root, error, **settings):
        """Returns the line with which the task is refused; the worker must not be needed for it."""
        began = time.monotonic()
        with pytest.raises(error) as caught:
            made(root, [settings.pop("task")], **settings)
        assert time.monotonic() - began < 10
        assert "\n" not in str(caught.value)
        assert not list((root / "datasets").glob("*")) if (root / "datasets").exists() else True
        return str(caught.value)

    def test_targets_that_are_too_short(self, tmp_path, file):
        message = self.refusal(
            tmp_path,
            errors.ConfigError,
            task={"name": "t", "files": [file]},
            feature_lengths={"inputs": 512, "targets": 64},
        )
        assert message == (
            "task 't': span corruption of inputs=512 writes targets of 114 tokens, but data.feature_lengths gives "
            "targets=64; make that 114 or shorten the inputs"
        )

    def test_an_encoder_without_inputs(self, tmp_path, file):
        task = {"name": "t", "files": [file], "objective": "lm"}
        assert self.refusal(tmp_path, errors.ConfigError, task=task) == (
            "task 't' has objective 'lm', which gives an encoder no inputs; use 'prefix_lm' or a decoder_only model"
        )

    def test_an_unknown_metric(self, tmp_path, file):
        task = {"name": "t", "files": [file], "objective": "supervised", "metrics": ["exact_mach"]}
        assert self.refusal(tmp_path, errors.ConfigError, task=task).startswith(
            "unknown metric 'exact_mach'; did you mean 'exact_match'? known: chrf, edit_similarity, exact_match,"
        )

    def test_no_validation_split_by_choice(self, tmp_path, file):
        task = {"name": "t", "files": [file], "validation_fraction": 0}
        assert self.refusal(tmp_path, errors.ConfigError, task=task) == (
            "task 't' has no validation split: validation_fraction=0 and no validation_files; "
            "give one of them, or set data.allow_missing_split=true"
        )

    def test_no_validation_split_for_want_of_text(self, tmp_path):
        (tmp_path / "a.txt").write_text("only one\nonly one\n")
        task = {"name": "t", "files": [str(tmp_path / "a.txt")]}
        assert self.refusal(tmp_path, errors.DataError, task=task) == (
            "task 't': none of its 2 documents is held out for validation; "
            "name validation_files, or set data.allow_missing_split=true"
        )

    def test_a_missing_file(self, tmp_path):
        message = self.refusal(tmp_path, errors.DataError, task={"name": "t", "files": [f"{tmp_path}/no.txt"]})
        assert message.startswith(f"task 't': no file matches {tmp_path}/no.txt; check the path")

    def test_an_unknown_task(self, tmp_path, file):
        with pytest.raises(errors.ConfigError) as caught:
            made(tmp_path, [{"name": "texts", "files": [file]}], "text")
        assert str(caught.value) == "unknown task 'text'; did you mean 'texts'? known: texts"
