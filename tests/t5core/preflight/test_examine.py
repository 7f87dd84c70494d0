"""What is refused, in one line each and before anything is written; what is warned of; what is found again."""

import pathlib
import re

import pytest

from t5core import errors
from t5core.data import mixture, vocabulary_training
from t5core.data.vocabulary_verification import rounded_size
from t5core.preflight import examine, lines, pools, sample, space
from t5core.preflight.record import Devices
from tests.t5core.preflight import runs

EIGHT = Devices(name="pool of eight", count=8, memory_bytes=pools.GIB)

REFUSALS = {
    "data.tasks.0.files=[nowhere/*.txt]": "task 'text': no file matches nowhere/*.txt",
    "train.batch_size=600": "rows, fewer than one batch of 600; add data, lower train.batch_size",
    "data.module=no_such_module": "data.module='no_such_module' is not to be found; check its name and PYTHONPATH",
    "data.module=no_package.tasks": "data.module='no_package.tasks' cannot be imported",
    "data.vocabulary={path: nowhere.model}": "cannot read the vocabulary nowhere.model",
    "data.vocabulary.extra_ids=300": "does not fit the model's 384 embedding rows; set model.vocab_size=640",
    "data.tasks.1.inputs='{missing}'": "unknown column 'missing'",
    "data.tasks.0.rate=1": "task 'pairs' has no rate and others have",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    runs.write_text(folder)
    return folder


def refusals(run, devices=runs.ONE_DEVICE):
    return examine.examine(run, devices=devices).refusals


def files_in(folder) -> set[pathlib.Path]:
    return set(pathlib.Path(folder).rglob("*"))


@pytest.mark.parametrize("override", list(REFUSALS))
def test_what_cannot_work_is_refused_in_one_line_and_nothing_is_written(folder, override):
    before = files_in(folder)
    (refusal,) = refusals(runs.run_in(folder, override))
    assert REFUSALS[override] in refusal
    assert "\n" not in refusal
    assert files_in(folder) == before


def test_a_run_that_can_work_is_not_refused_and_leaves_nothing(folder):
    before = files_in(folder)
    found = examine.examine(runs.run_in(folder), devices=runs.ONE_DEVICE)
    assert (found.refusals, found.exact) == ([], None)
    assert found.estimated is not None
    assert found.epochs == pytest.approx(30 * 4 / found.estimated.rows)
    assert files_in(folder) == before


def test_all_reasons_are_told_at_once(folder, monkeypatch):
    monkeypatch.setattr(space, "free_bytes", lambda uri: 1000)
    run = runs.run_in(folder, "data.tasks.0.files=[nowhere/*.txt]", "train.batch_size=8")
    small = runs.ONE_DEVICE.model_copy(update={"memory_bytes": 1000})
    no_file, no_space, no_memory = refusals(run, small)
    assert "no file matches" in no_file
    assert "more checkpoints of" in no_space
    assert no_memory.startswith("a device of a test has 0.0 GB, and the state of")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.batch_size=12"], "train.batch_size=12 does not divide by the 8 devices of pool of eight; use 8 or 16"),
        (
            ["train.batch_size=8", "train.num_microbatches=2"],
            "train.batch_size=8 does not divide by the 8 devices of pool of eight times 2 micro-batches; use 16",
        ),
        (
            ["train.batch_size=8", "evaluate.batch_size=4"],
            "evaluate.batch_size=4 does not divide by the 8 devices of pool of eight; use 8",
        ),
    ],
)
def test_batches_divide_over_the_devices_that_will_train(folder, overrides, message):
    assert refusals(runs.run_in(folder, *overrides), EIGHT) == [message]


def test_each_device_has_a_part_of_the_batch_and_all_of_the_state(folder):
    run = runs.run_in(folder, "train.batch_size=32")
    one, eight = (examine.examine(run, devices=devices).model for devices in (runs.ONE_DEVICE, EIGHT))
    assert one.state_bytes == eight.state_bytes
    assert one.step_bytes_low > 4 * eight.step_bytes_low


def test_memory_that_only_a_clever_compiler_saves_is_a_warning(folder):
    run = runs.run_in(folder)
    figures = examine.examine(run, devices=runs.ONE_DEVICE).model
    between = figures.state_bytes + (figures.step_bytes_low + figures.step_bytes_high) // 2
    found = examine.examine(run, devices=runs.ONE_DEVICE.model_copy(update={"memory_bytes": between}))
    assert found.refusals == []
    assert [line for line in found.warnings if "to be safe" in line]


WARNINGS = {
    "train.learning_rate={factors: constant * cosine_decay, warmup_steps: 0, steps_per_cycle: 10}": (
        "the learning rate is at its minimum of 1e-08 from step"
    ),
    "train.learning_rate={factors: constant * linear_warmup, warmup_steps: 1, step_offset: 5}": (
        "the learning rate stays at its minimum of 1e-08 for the first 6 steps"
    ),
    "train.actions=[{name: early_stopping, task: text, patience: 2}]": (
        "early stopping on text/loss stops 20 steps after the best evaluation, and train.keep_checkpoints=2 reaches "
        "back 10: the best state will be gone; add the action keep_best, or keep 3"
    ),
    "train.eval_period=15": "train.eval_period=15 is no multiple of train.checkpoint_period=10",
    "data.vocabulary.extra_ids=1": (
        "would have 3 spans, but there is a sentinel for 1 only, so spans grow to 8.0 tokens"
    ),
}


@pytest.mark.parametrize("override", list(WARNINGS))
def test_what_hardly_works_as_meant_is_warned_of(folder, override):
    settings = ("train.keep_checkpoints=2", override)
    run = runs.run_in(folder, *settings)
    found = examine.examine(run, devices=runs.ONE_DEVICE)
    assert [line for line in found.warnings if WARNINGS[override] in line], found.warnings


def test_a_recipe_without_these_is_not_warned_of(folder):
    assert examine.examine(runs.run_in(folder), devices=runs.ONE_DEVICE).warnings == []


def test_what_is_there_is_found_by_content_and_counted(folder, tmp_path):
    root = f"run.root={tmp_path}"
    run = runs.run_in(folder, root)
    assert [(entry.what, entry.found) for entry in examine.examine(run, devices=runs.ONE_DEVICE).reuse] == [
        ("vocabulary", True),  # bytes
        ("task text", False),
        ("task pairs", False),
    ]
    vocabulary, tasks = runs.datasets_of(run)
    mixed = mixture.assemble_mixture(run, vocabulary=vocabulary, tasks=tasks)
    found = examine.examine(run, devices=runs.ONE_DEVICE)
    assert [(entry.what, entry.found) for entry in found.reuse] == [
        ("vocabulary", True),
        ("task text", True),
        ("task pairs", True),
        ("mixture", True),
    ]
    assert found.estimated is None
    assert found.exact is not None
    assert found.exact.rows == mixed.rows
    assert found.epochs == 30 * 4 / mixed.rows
    other = examine.examine(runs.run_in(folder, root, "data.tasks.0.noise_density=0.2"), devices=runs.ONE_DEVICE)
    assert [(entry.what, entry.found) for entry in other.reuse][1:3] == [("task text", False), ("task pairs", True)]


def test_data_that_are_read_a_hundred_times_are_remarked_on(folder):
    rows = examine.examine(runs.run_in(folder), devices=runs.ONE_DEVICE).estimated.rows
    for times, start in ((99, "null"), (100, "null"), (99, "keep"), (100, "keep")):
        first = 0 if start == "null" else 1000
        steps = first + -(-times * rows // 4)
        init = "null" if start == "null" else "{checkpoint: runs/other/checkpoints/1000}"
        run = runs.run_in(folder, f"train.total_steps={steps}", f"run.init_from={init}", "train.learning_rate={}")
        told = [line for line in examine.examine(run, devices=runs.ONE_DEVICE).warnings if "each row is read" in line]
        assert len(told) == (times == 100), (times, start)
    assert told[0].startswith(
        f"each row is read about 100 times: the tasks give about {rows} rows, and {steps - 1000:,}"
    )


def test_of_a_finished_run_no_steps_are_tried(folder, tmp_path, monkeypatch):
    run = runs.run_in(folder, f"run.root={tmp_path}")
    monkeypatch.setattr(examine.reuse.index, "latest", lambda uri: 30)
    found = examine.examine(run, devices=runs.ONE_DEVICE, takes_steps=True)
    assert (found.refusals, found.probe, found.first_step) == ([], None, 30)
    assert "time" not in dict(lines.lines_of(found))


def test_a_large_text_is_not_read_only_to_be_known_again(folder, monkeypatch):
    monkeypatch.setattr(examine.reuse, "MOST_BYTES", 10)
    found = examine.examine(runs.run_in(folder), devices=runs.ONE_DEVICE)
    assert [entry.reason for entry in found.reuse if not entry.found] == [
        "not looked for: 0.0 GB of text would have to be read first"
    ] * 2


def vocabulary_of(size):
    return f"data.vocabulary={{size: {size}}}", f"model.vocab_size={rounded_size(size, 100)}"


@pytest.mark.parametrize("trained_characters", [examine._TRAINED_CHARACTERS, 2000])
@pytest.mark.parametrize("size", [100, 2000])
def test_a_vocabulary_that_the_text_does_not_give_is_refused_as_its_stage_would(
    folder, tmp_path, monkeypatch, size, trained_characters
):
    monkeypatch.setattr(examine, "_TRAINED_CHARACTERS", trained_characters)
    run = runs.run_in(folder, *vocabulary_of(size), f"run.root={tmp_path}")
    with pytest.raises(errors.ConfigError, match=rf"data.vocabulary.size={size} .* \d+ at (most|least)") as later:
        vocabulary_training.build_vocabulary(run)
    assert refusals(run) == [str(later.value)]


def test_a_vocabulary_is_not_refused_for_what_a_part_of_the_text_does_not_give(folder, monkeypatch):
    whole = examine.examine(runs.run_in(folder, *vocabulary_of(320)), devices=runs.ONE_DEVICE)
    assert whole.refusals == []
    assert whole.estimated.basis.endswith("tokenised by a vocabulary trained on a sample")
    monkeypatch.setattr(sample, "SMALL_BYTES", 0)
    for size in (100, 2000):
        found = examine.examine(runs.run_in(folder, *vocabulary_of(size)), devices=runs.ONE_DEVICE)
        assert found.refusals == []
        assert found.estimated is not None


def test_a_damaged_dataset_is_told_as_one_to_be_made_again(folder, tmp_path):
    run = runs.run_in(folder, f"run.root={tmp_path}")
    made = runs.datasets_of(run)[1][0]
    next(pathlib.Path(made.uri).glob("train/targets/c/*/*")).unlink()
    found = examine.examine(run, devices=runs.ONE_DEVICE)
    told = next(entry for entry in found.reuse if entry.what == f"task {made.name}")
    assert not told.found
    assert re.fullmatch(r"the one there is damaged: .*train/targets/c/\S+ is missing", told.reason)
