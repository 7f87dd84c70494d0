"""Actions in `train`: they run whatever else goes on, a stop is kept, and what they know crosses calls."""

import concurrent.futures
import math
import types

import jax.numpy as jnp
import pytest

from t5core import errors
from t5core.actions.base import ActionMode, BaseAction, EarlyStoppingAction, TerminateOnNanAction
from t5core.checkpoints import index
from t5core.running import run_record
from t5core.train import run_actions
from tests.t5core import train_runs
from tests.t5core.fake_evaluator import FakeEvaluator
from tests.t5core.train_runs import lines, run, saving, steps_saved


class Stop(BaseAction):
    """Asks for a stop at one step; notes every step it saw."""

    def __init__(self, at=None):
        self.at, self.seen = at, []

    def run(self, train_state, metrics_by_task):
        self.seen.append(int(train_state.step))
        return self.seen[-1] == self.at

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])


def evaluating(eval_period=2, **changes):
    return {
        "train_eval_dataset_cfg": train_runs.config("val", split="validation"),
        "infer_eval_dataset_cfg": train_runs.config("val", split="validation"),
        "inference_evaluator_cls": FakeEvaluator,
        "eval_period": eval_period,
        **changes,
    }


MODES = ["TRAIN", "TRAIN_EVAL", "INFER_EVAL"]


@pytest.mark.parametrize("concurrent", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_an_action_of_any_mode_stops_the_run_with_a_checkpoint(tmp_path, mode, concurrent):
    """Difference from T5X: which ignores two of the modes with concurrent metrics, and may not save."""
    others = {name: [Stop()] for name in MODES if name != mode}
    actions = {mode: [Stop(), Stop(at=4), Stop()], **others}
    step, state = run(
        tmp_path,
        **evaluating(actions=actions, concurrent_metrics=concurrent, checkpoint_cfg=saving(100)),
        total_steps=9,
    )
    assert step == int(state.step) == 4
    assert steps_saved(tmp_path) == [0, 4]
    assert [action.seen[-1] for action in actions[mode]] == [4, 4, 4], "all of them run"
    decision = run_record.last_decision(str(tmp_path), 4)
    assert (decision.asked, decision.reasons) == ((f"{mode}/1-Stop",), ("Stop",))
    assert [line["step"] for line in lines(tmp_path, "training_eval", "first")] == [2, 4]


def test_a_stop_in_a_stretch_is_saved_where_it_was_asked_for(tmp_path):
    step, _ = run(tmp_path, actions={"TRAIN": [Stop(at=5)]}, checkpoint_cfg=saving(100), total_steps=9, stats_period=1)
    assert step == 5
    assert steps_saved(tmp_path) == [0, 5]


@pytest.mark.parametrize("mode", MODES)
def test_a_stopped_run_stays_stopped_until_the_action_is_taken_away(tmp_path, mode, capsys):
    stopping = evaluating(actions={mode: [Stop(at=4)]})
    assert run(tmp_path, **stopping, total_steps=8)[0] == 4
    capsys.readouterr()
    data = train_runs.Numbers()
    assert run(tmp_path, **evaluating(actions={mode: [Stop(at=4)]}), get_dataset_fn=lambda *_: data)[0] == 4
    assert data.taken == []
    assert f"{tmp_path} was stopped at step 4: Stop; take that action away to go on" in capsys.readouterr().out
    assert run(tmp_path, **evaluating(), total_steps=8)[0] == 8


class Watching(BaseAction):
    """Notes what it sees."""

    def __init__(self):
        self.seen = []

    def run(self, train_state, metrics_by_task):
        self.seen.append((int(train_state.step), metrics_by_task))
        return False


def test_metrics_are_those_of_the_mode(tmp_path):
    watching = {mode: [Watching()] for mode in MODES}
    run(tmp_path, **evaluating(actions=watching), total_steps=2)
    seen = {mode: actions[0].seen[-1] for mode, actions in watching.items()}
    assert {mode: step for mode, (step, _) in seen.items()} == dict.fromkeys(MODES, 2)
    assert set(seen["TRAIN"][1]) == {"train"}
    assert seen["TRAIN"][1]["train"]["loss"] == lines(tmp_path, "train")[-1]["loss"]
    assert set(seen["TRAIN_EVAL"][1]) == {"first", "second"}
    assert seen["INFER_EVAL"][1]["fake"]["examples"] == 9


class Slow(FakeEvaluator):
    """Its metrics are asked for when somebody waits for them; notes that."""

    notes: list = []

    def evaluate(self, *, step, **arguments):
        done, outputs = super().evaluate(step=step, **arguments)

        def result():
            self.notes.append(f"metrics of {step}")
            return done.result()

        return types.SimpleNamespace(result=result), outputs


@pytest.mark.parametrize("beside", [True, False])
def test_metric_functions_run_beside_training_if_nobody_waits_for_them(tmp_path, monkeypatch, beside):
    monkeypatch.setattr(Slow, "notes", [])
    given = {"inference_evaluator_cls": Slow, "train_eval_dataset_cfg": None, "concurrent_metrics": beside}
    summary = {"checkpoint_cfg": saving(4), "actions": {"TRAIN": [Noting(Slow.notes)]}}
    run(tmp_path, **evaluating(**given), **summary, total_steps=4)
    order = ["step 1", "step 2", "metrics of 2", "step 4", "metrics of 4"]
    later = ["step 1", "step 2", "step 4", "metrics of 2", "metrics of 4"]
    assert Slow.notes == (later if beside else order)
    assert [line["step"] for line in lines(tmp_path, "inference_eval", "fake")] == [2, 4]


class Noting(Stop):
    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def run(self, train_state, metrics_by_task):
        self.notes.append(f"step {int(train_state.step)}")
        return False


class Failing(FakeEvaluator):
    def evaluate(self, **arguments):
        future = concurrent.futures.Future()
        future.set_exception(ValueError("Failed to evaluate task fake: no such thing"))
        return future, super().evaluate(**arguments)[1]


def test_a_metric_function_that_fails_ends_the_run_though_it_was_the_last(tmp_path):
    """Difference from T5X, where the last failure is never seen."""
    with pytest.raises(ValueError, match="Failed to evaluate task fake: no such thing"):
        run(tmp_path, **evaluating(inference_evaluator_cls=Failing), total_steps=2)
    assert steps_saved(tmp_path) == [0, 2]


def test_early_stopping_stops_at_the_same_step_however_the_run_is_cut(tmp_path):
    ends = {}
    for name, cuts in {"straight": [12], "cut": [2, 4, 12]}.items():
        for total_steps in cuts:
            worse = EarlyStoppingAction(("first", "loss"), "max", patience=3)
            step, _ = run(
                tmp_path / name,
                **evaluating(actions={"TRAIN_EVAL": [worse]}, infer_eval_dataset_cfg=None),
                total_steps=total_steps,
            )
            ends[name] = step
    assert ends == {"straight": 8, "cut": 8}
    assert steps_saved(tmp_path / "straight")[-1] == 8


def test_an_evaluation_that_was_killed_is_made_up_for_and_none_is_made_twice(tmp_path):
    class KilledError(Exception):
        pass

    def killed(*_):
        raise KilledError
        yield

    stop = Stop()
    with pytest.raises(KilledError):
        run(
            tmp_path,
            **evaluating(actions={"TRAIN_EVAL": [stop]}, infer_eval_dataset_cfg=None),
            train_eval_get_dataset_fn=lambda *_: {"first": killed()},
            checkpoint_cfg=saving(2),
        )
    assert stop.seen == []
    assert steps_saved(tmp_path) == [0, 2]
    for _ in range(2):
        stop = Stop()
        run(tmp_path, **evaluating(actions={"TRAIN_EVAL": [stop]}, infer_eval_dataset_cfg=None), total_steps=4)
        assert stop.seen == [2, 4]
    assert [line["step"] for line in lines(tmp_path, "training_eval", "first")] == [2, 4]


def test_actions_look_at_a_step_once_however_often_it_is_evaluated(tmp_path):
    first = evaluating(run_eval_before_training=True, infer_eval_dataset_cfg=None)
    for _ in range(2):
        stop = Stop()
        run(tmp_path, **first, actions={"TRAIN_EVAL": [stop]}, total_steps=2)
        assert stop.seen == [0, 2]
    assert [line["step"] for line in lines(tmp_path, "training_eval", "first")] == [0, 2]


@pytest.mark.parametrize("use_orbax", [False, True])
def test_memory_is_saved_with_the_checkpoint(tmp_path, use_orbax):
    """An action of TRAIN decides nothing at the step that is saved, so nothing else remembers it."""
    for total_steps, seen in ((2, [1, 2]), (4, [1, 2, 3, 4])):
        stop = Stop()
        run(tmp_path, actions={"TRAIN": [stop]}, total_steps=total_steps, stats_period=1, use_orbax=use_orbax)
        assert stop.seen == seen


def test_a_stop_before_training_prevents_it(tmp_path):
    actions = {"TRAIN_EVAL": [Stop(at=0)]}
    step, _ = run(tmp_path, **evaluating(actions=actions, run_eval_before_training=True), checkpoint_cfg=saving(None))
    assert step == 0
    assert steps_saved(tmp_path) == [0]


class Spoilt(train_runs.Numbers):
    """The fifth batch has weights that are not numbers."""

    def __iter__(self):
        for step, batch in enumerate(super().__iter__()):
            weights = batch["decoder_loss_weights"].astype("float32")
            yield {**batch, "decoder_loss_weights": weights * (math.nan if step == 4 else 1.0)}


@pytest.mark.parametrize("use_orbax", [False, True])
def test_nan_stops_and_the_last_good_checkpoint_survives_though_one_is_kept(tmp_path, use_orbax):
    step, _ = run(
        tmp_path,
        actions={"TRAIN": [TerminateOnNanAction("train")]},
        get_dataset_fn=lambda *_: Spoilt(),
        total_steps=9,
        stats_period=3,
        checkpoint_cfg=saving(2, keep=1),
        use_orbax=use_orbax,
    )
    assert step == 6
    left = index.committed_steps(f"{tmp_path}/checkpoints") if use_orbax else tuple(steps_saved(tmp_path))
    assert left == (4, 6)


def test_nan_stops_and_the_checkpoints_before_it_stay(tmp_path):
    step, _ = run(
        tmp_path,
        actions={"TRAIN": [TerminateOnNanAction("train")]},
        get_dataset_fn=lambda *_: Spoilt(),
        total_steps=9,
        stats_period=1,
        checkpoint_cfg=saving(2),
    )
    assert step == 5
    assert steps_saved(tmp_path) == [0, 2, 4, 5]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"TRAIN_EVALS": []}, "unknown key of actions 'TRAIN_EVALS'; did you mean 'TRAIN_EVAL'? known: "),
        ({"TRAIN": ["stop"]}, "actions['TRAIN'][0] is a str; derive it from BaseAction"),
        ({"TRAIN": [TerminateOnNanAction("trian")]}, "unknown task 'trian'; did you mean 'train'? known: train"),
        ({"TRAIN": [TerminateOnNanAction("train", "los")]}, "unknown metric 'los'; did you mean 'loss'? known: accur"),
        (
            {"TRAIN_EVAL": [TerminateOnNanAction("firts")]},
            "unknown task 'firts'; did you mean 'first'? known: first, s",
        ),
        ({"INFER_EVAL": [TerminateOnNanAction("take")]}, "unknown task 'take'; did you mean 'fake'? known: fake"),
    ],
)
def test_unknown_names_are_refused_before_training(tmp_path, actions, message):
    data = train_runs.Numbers()
    with pytest.raises(errors.ConfigError) as raised:
        run(tmp_path, **evaluating(actions=actions), get_dataset_fn=lambda *_: data)
    assert message in str(raised.value)
    assert data.taken == []


@pytest.mark.parametrize("mode", ["TRAIN_EVAL", "INFER_EVAL"])
def test_an_action_that_would_never_run_is_refused(tmp_path, mode):
    with pytest.raises(
        errors.ConfigError, match=rf"actions\['{mode}'\] would never run: there is no {mode.lower()} con"
    ):
        run(tmp_path, actions={mode: [Stop()]})


def test_a_metric_that_an_evaluation_did_not_give_is_an_error(tmp_path):
    with pytest.raises(errors.ConfigError, match="unknown metric of task 'fake' 'exampels'; did you mean 'examples'"):
        run(tmp_path, **evaluating(actions={"INFER_EVAL": [TerminateOnNanAction("fake", "exampels")]}))


def test_memory_that_is_no_json_is_refused(tmp_path):
    class Forgetful(Stop):
        def state_dict(self):
            return {"state": {1, 2}}

    with pytest.raises(errors.ConfigError, match="the state_dict of an action is no JSON"):
        run(tmp_path, actions={"TRAIN": [Forgetful()]})


def test_run_actions_runs_all_of_a_mode_and_answers_yes_or_no():
    first, second, other = Watching(), Stop(at=3), Watching()
    actions = {"TRAIN": [first, second], ActionMode.TRAIN_EVAL: [other]}

    class State:
        step = jnp.int32(3)

    metrics = {"train": {"loss": 1.0}}
    assert run_actions(ActionMode.TRAIN, actions, State, metrics) is True
    assert len(first.seen) == len(second.seen) == 1
    assert run_actions(ActionMode.TRAIN_EVAL, actions, State, metrics) is False
    assert len(other.seen) == 1
    assert run_actions(ActionMode.INFER_EVAL, actions, State, metrics) is False


@pytest.mark.parametrize("metrics", [None, {}])
def test_run_actions_refuses_to_run_without_metrics(metrics):
    with pytest.raises(RuntimeError, match="the metrics are unexpectedly empty on process 0"):
        run_actions(ActionMode.TRAIN, {}, None, metrics)
