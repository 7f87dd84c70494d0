"""`train`: its signature, the order of what it does, and when things happen."""

import ast
import contextlib
import gc
import inspect
import json
import pathlib
import re
import threading

import jax
import numpy as np
import pytest

from t5core import errors
from t5core.actions.base import BaseAction
from t5core.checkpoint_config import CheckpointConfig
from t5core.starting.state_initializer import TrainStateInitializer
from t5core.train import train
from tests.t5core import tiny, train_runs
from tests.t5core.train_runs import lines, run, saving, steps_saved

DEFAULTS = {
    "relative_steps": None,
    "stats_period": None,
    "use_hardware_rng": False,
    "concurrent_metrics": True,
    "actions": None,
    "run_eval_before_training": False,
    "use_orbax": False,
    "gc_period": 0,
}
FUNCTIONS = {
    "inference_evaluator_cls": "seqio_evaluator",
    "get_dataset_fn": "get_dataset",
    "train_eval_get_dataset_fn": "get_training_eval_datasets",
    "train_state_initializer_cls": "TrainStateInitializer",
    "verify_matching_vocabs_fn": "verify_matching_vocabs",
}
REQUIRED = [
    "model",
    "train_dataset_cfg",
    "train_eval_dataset_cfg",
    "infer_eval_dataset_cfg",
    "checkpoint_cfg",
    "partitioner",
    "trainer_cls",
    "model_dir",
    "total_steps",
    "eval_steps",
    "eval_period",
    "random_seed",
    "summarize_config_fn",
]


def evaluating(**changes):
    return {"train_eval_dataset_cfg": train_runs.config("val", split="validation"), **changes}


def test_the_signature_is_frozen():
    parameters = inspect.signature(train).parameters
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    defaults = {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}
    assert [name for name in parameters if name not in defaults] == REQUIRED
    assert {name: getattr(value, "__name__", value) for name, value in defaults.items()} == DEFAULTS | FUNCTIONS


def test_the_body_is_a_page_and_every_parameter_is_described():
    source = pathlib.Path(inspect.getsourcefile(train)).read_text()
    (function,) = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == "train")
    assert function.end_lineno - function.body[1].lineno < 60
    for name in inspect.signature(train).parameters:
        assert f"  {name}: " in train.__doc__, name


PARITY = pathlib.Path(__file__).parents[2] / "docs" / "parity.md"


def test_the_documentation_has_a_row_for_every_parameter():
    (section,) = (part for part in PARITY.read_text().split("\n## ") if part.startswith("Parameters"))
    rows = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert rows == list(inspect.signature(train).parameters)


class Noting(BaseAction):
    """Notes what it sees, and asks for a stop where told."""

    def __init__(self, notes, name, *, stop_at=None):
        self.notes, self.name, self.stop_at = notes, name, stop_at

    def run(self, train_state, metrics_by_task):
        step = int(train_state.step)
        self.notes.append((self.name, step, sorted(metrics_by_task)))
        return step == self.stop_at


def test_things_happen_in_the_order_of_t5x(tmp_path, monkeypatch):
    notes = []

    def noting(name, result=None):
        def call(*arguments, **named):
            notes.append(name)
            return result(*arguments, **named) if result else None

        return call

    class Initializer(TrainStateInitializer):
        def from_scratch(self):
            notes.append("initialise")
            return super().from_scratch()

    def save(store, step, *rest, **named):
        notes.append(f"save {step}")
        return original(store, step, *rest, **named)

    from t5core.checkpoints.native_store import NativeCheckpointStore

    original = NativeCheckpointStore.save
    monkeypatch.setattr(NativeCheckpointStore, "save", save)
    run(
        tmp_path,
        **evaluating(eval_period=2),
        total_steps=4,
        checkpoint_cfg=saving(2),
        verify_matching_vocabs_fn=lambda cfg, model: notes.append(f"verify {cfg.split}"),
        get_dataset_fn=noting("data", lambda *_: train_runs.Numbers()),
        train_eval_get_dataset_fn=noting("evaluation data", train_runs.evaluation),
        trainer_cls=noting("trainer", lambda **_: train_runs.trainer()),
        train_state_initializer_cls=Initializer,
        summarize_config_fn=lambda model_dir, writer, step: notes.append(f"summarize {step}"),
        run_eval_before_training=True,
        actions={"TRAIN": [Noting(notes, "TRAIN")], "TRAIN_EVAL": [Noting(notes, "TRAIN_EVAL")]},
    )
    evaluated = ["first", "second"]
    assert notes == [
        "verify train",
        "verify validation",
        "trainer",
        "data",
        "evaluation data",
        "initialise",
        "summarize 0",
        ("TRAIN_EVAL", 0, evaluated),
        "save 0",
        ("TRAIN", 1, ["train"]),
        ("TRAIN", 2, ["train"]),
        "save 2",
        ("TRAIN_EVAL", 2, evaluated),
        ("TRAIN", 4, ["train"]),
        "save 4",
        ("TRAIN_EVAL", 4, evaluated),
    ]


def evaluated_at(model_dir):
    return [line["step"] for line in lines(model_dir, "training_eval", "first")]


@pytest.mark.parametrize("cuts", [[10], [5, 10], list(range(1, 11))])
def test_evaluations_checkpoints_and_rates_follow_absolute_steps_however_the_run_is_cut(tmp_path, cuts):
    """Difference from T5X, where a run that starts at 5 evaluates at 9."""
    actions = {"TRAIN_EVAL": [Noting([], "")]}
    for total_steps in cuts:
        step, _ = run(tmp_path, **evaluating(eval_period=4, actions=actions), total_steps=total_steps, stats_period=1)
        assert step == total_steps
    ends = set(cuts)
    assert evaluated_at(tmp_path) == sorted({4, 8} | ends)
    assert steps_saved(tmp_path) == sorted({0, 3, 6, 9} | ends)
    rates = [line["learning_rate/current"] for line in lines(tmp_path, "train")]
    np.testing.assert_allclose(rates, [0.1 / max(step, 4) ** 0.5 for step in range(10)], rtol=1e-6)


@pytest.mark.parametrize("use_orbax", [False, True])
def test_any_cut_ends_in_the_bits_of_a_straight_run(tmp_path, use_orbax):
    straight = run(tmp_path / "straight", use_orbax=use_orbax, total_steps=8)
    for total_steps in (1, 3, 4, 8):
        cut = run(tmp_path / "cut", use_orbax=use_orbax, total_steps=total_steps)
    assert (straight[0], cut[0]) == (8, 8)
    train_runs.assert_same(straight[1], cut[1])


def test_the_last_step_is_saved_once_whether_it_is_on_the_grid_or_not(tmp_path):
    run(tmp_path / "on", checkpoint_cfg=saving(5), total_steps=10)
    run(tmp_path / "off", checkpoint_cfg=saving(5), total_steps=12)
    run(tmp_path / "listed", checkpoint_cfg=saving(None, checkpoint_steps=(7, 3, 50)), total_steps=10)
    run(tmp_path / "end", checkpoint_cfg=saving(None), total_steps=4)
    assert steps_saved(tmp_path / "on") == [0, 5, 10]
    assert steps_saved(tmp_path / "off") == [0, 5, 10, 12]
    assert steps_saved(tmp_path / "listed") == [3, 7, 10]
    assert steps_saved(tmp_path / "end") == [4]


def test_without_a_save_config_nothing_is_saved_and_without_evaluations_nothing_is_evaluated(tmp_path):
    step, _ = run(tmp_path, checkpoint_cfg=CheckpointConfig(), eval_period=7)
    assert step == 6
    assert steps_saved(tmp_path) == []
    assert not (tmp_path / "training_eval").exists()


def test_a_finished_run_trains_nothing_and_takes_no_batch(tmp_path):
    first = run(tmp_path)
    data = train_runs.Numbers()
    again = run(tmp_path, get_dataset_fn=lambda *_: data)
    assert again[0] == first[0] == 6
    train_runs.assert_same(again[1], first[1])
    assert data.taken == []


def test_a_run_can_only_evaluate(tmp_path):
    step, _ = run(tmp_path, **evaluating(run_eval_before_training=True), total_steps=0)
    assert step == 0
    assert evaluated_at(tmp_path) == [0]
    assert steps_saved(tmp_path) == [0]


def test_relative_steps_end_where_they_did_when_the_call_is_repeated(tmp_path):
    run(tmp_path, total_steps=4)
    step, _ = run(tmp_path, relative_steps=5, total_steps=1)
    assert step == 9
    assert run(tmp_path, relative_steps=5)[0] == 9
    assert run(tmp_path, relative_steps=7)[0] == 11
    assert run(tmp_path, relative_steps=0, total_steps=12)[0] == 12


def test_total_steps_may_grow_and_may_not_shrink(tmp_path):
    run(tmp_path, total_steps=4)
    data = []
    with pytest.raises(errors.ConfigError, match="total_steps=3 is below the checkpoint's step 4; raise it, use relat"):
        run(tmp_path, total_steps=3, get_dataset_fn=lambda *_: data.append(1))
    assert data == [], "no data was read"
    assert run(tmp_path, total_steps=5)[0] == 5


def test_metrics_have_a_line_for_each_stretch_and_t5x_names(tmp_path):
    run(tmp_path, **evaluating(eval_period=3), total_steps=6, stats_period=2)
    trained = lines(tmp_path, "train")
    assert [line["step"] for line in trained] == [1, 2, 3, 4, 6]
    names = {"accuracy", "loss", "z_loss", "cross_ent_loss", "learning_rate", "learning_rate/current", "timing/uptime"}
    assert trained[-1].keys() >= names
    assert trained[-1].keys() >= {"timing/seqs_per_second", "timing/steps_per_second", "timing/seconds_per_step"}
    np.testing.assert_allclose(trained[0]["loss_per_nonpadding_target_token"], np.log(tiny.VOCAB), rtol=0.2)
    np.testing.assert_allclose(trained[0]["loss"], np.log(tiny.VOCAB), rtol=0.2)
    assert trained[-1].keys() >= {"timing/target_tokens_per_second", "non_padding_fraction/overall"}
    timing = {line["step"]: set(line) - {"step"} for line in lines(tmp_path, "timing")}
    assert timing[0] == {"timing/init_or_restore_seconds", "timing/checkpoint_seconds", "timing/train_iter_warmup"}
    assert list((tmp_path / "train").glob("events.*"))


@pytest.mark.parametrize("stats_period", [None, 0])
def test_without_a_stats_period_a_line_reaches_from_event_to_event(tmp_path, stats_period):
    run(tmp_path, **evaluating(eval_period=4), stats_period=stats_period, total_steps=9)
    assert [line["step"] for line in lines(tmp_path, "train")] == [1, 3, 4, 6, 8, 9]


def test_model_info_and_the_summary_of_the_configuration_are_written(tmp_path):
    def summarize(model_dir, writer, step):
        pathlib.Path(model_dir, "config.txt").write_text(f"from step {step}")
        writer.write_texts(step, {"config": "mine"})
        writer.write_scalars(step, {"answer": 42})

    run(tmp_path, summarize_config_fn=summarize, total_steps=1)
    assert (tmp_path / "config.txt").read_text() == "from step 0"
    assert lines(tmp_path, "timing")[0]["answer"] == 42.0
    info = (tmp_path / "model-info.txt").read_text().splitlines()
    size = sum(leaf.size for leaf in jax.tree.leaves(train_runs.trainer().abstract_state.params))
    assert f"Total number of parameters: {size}" in info
    first = next(line for line in info if line.startswith("Variable token_embedder/embedding "))
    described = "Variable token_embedder/embedding size 1024 shape (vocab=128, embed=8) partition spec (model, None)"
    assert " ".join(first.split()) == described
    assert info[info.index(f"Total number of parameters: {size}") + 1] == ""
    assert any(line.startswith("Variable param_states/token_embedder/embedding/v ") for line in info)


class FailingError(Exception):
    pass


def failing(step):
    def batches(*_):
        def iterate():
            for index in range(step):
                yield tiny.batch(index)
            raise FailingError

        return iterate()

    return batches


WAYS_TO_END = {"as asked for": {}, "at once": {"total_steps": 0}, "with an error": {"get_dataset_fn": failing(2)}}


@pytest.mark.parametrize("changes", WAYS_TO_END.values(), ids=WAYS_TO_END)
def test_whatever_happens_the_process_is_left_as_it_was(tmp_path, changes):
    key, threads, seen = np.asarray(jax.random.PRNGKey(0)), threading.enumerate(), []
    with pytest.raises(FailingError) if "get_dataset_fn" in changes else contextlib.nullcontext():
        run(
            tmp_path,
            use_hardware_rng=True,
            trainer_cls=fresh_trainer,
            gc_period=2,
            summarize_config_fn=lambda *_: seen.append(gc.isenabled()),
            **changes,
        )
    assert seen == [False]
    assert gc.isenabled()
    for thread in set(threading.enumerate()) - set(threads):
        thread.join(timeout=30)  # that of TensorBoard's queue ends by itself, but not at once
    assert set(threading.enumerate()) <= set(threads)
    assert not (tmp_path / "lock.json").exists()
    np.testing.assert_array_equal(jax.random.PRNGKey(0), key)


def fresh_trainer(*, seed, **_):
    fresh_trainer.key_words = jax.random.PRNGKey(seed).size
    return train_runs.trainer()


def test_what_t5x_tells_jax_s_monitoring_is_told(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(jax.monitoring, "record_event", lambda event, **_: events.append(event))
    monkeypatch.setattr(jax.monitoring, "record_event_duration_secs", lambda event, *_, **__: events.append(event))
    run(tmp_path, total_steps=1)
    run(tmp_path, total_steps=1)
    assert [event for event in events if event.startswith(("/jax/t5x/", "/jax/checkpoint/"))] == [
        "/jax/t5x/train/beacon",
        "/jax/checkpoint/write/durations_sec",
        "/jax/t5x/train/time_before_first_step_secs",
        "/jax/checkpoint/write/durations_sec",
        "/jax/t5x/train/beacon",
        "/jax/checkpoint/read/durations_sec",
    ]


def test_garbage_is_collected_at_multiples_of_its_period_and_at_the_end(tmp_path, monkeypatch):
    steps = []
    notes = []
    monkeypatch.setattr("t5core.running.training_run.gc.collect", lambda: steps.append(notes[-1][1] if notes else 0))
    seen = Noting(notes, "")
    run(tmp_path, gc_period=4, total_steps=9, stats_period=3, actions={"TRAIN": [seen]}, checkpoint_cfg=saving(None))
    assert [step for _, step, _ in notes] == [1, 3, 4, 6, 8, 9]
    assert steps == [3, 6, 8], "the collection comes before the actions of 4, 8 and 9"


def test_random_numbers_come_from_the_hardware_when_asked_for_or_without_a_seed(tmp_path):
    words = {}
    for name, given in {"soft": {}, "hard": {"use_hardware_rng": True}, "none": {"random_seed": None}}.items():
        run(tmp_path / name, trainer_cls=fresh_trainer, total_steps=0, **given)
        words[name] = fresh_trainer.key_words
    assert words == {"soft": 2, "hard": 4, "none": 4}


def test_a_drawn_seed_is_printed_and_kept(tmp_path, capsys):
    seeds = []

    def noting(*, seed, **_):
        seeds.append(seed)
        return train_runs.trainer()

    for _ in range(2):
        run(tmp_path, random_seed=None, trainer_cls=noting, total_steps=0)
    assert seeds[0] == seeds[1] == json.loads((tmp_path / "train.json").read_text())["random_seed"]
    assert f"has drawn {seeds[0]} and keeps it" in capsys.readouterr().out
    run(tmp_path / "other", random_seed=None, trainer_cls=noting, total_steps=0)
    assert seeds[2] != seeds[0]
    run(tmp_path / "zero", random_seed=0, trainer_cls=noting, total_steps=0)
    assert seeds[3] == 0
