"""Assembling a mixture: rates, repeats, orders, reuse, and that no token is lost or added."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest

from t5core import errors
from t5core.config.edges import VocabularyRef
from t5core.data import manifest, mixture, store
from tests.t5core.data.making import VOCABULARY, examples, resolved_run, task_dataset


def _assemble(root, rates, tasks, **options):
    run = resolved_run(str(root), rates, **options)
    return mixture.assemble_mixture(run, vocabulary=VOCABULARY, tasks=tasks)


def _rows(reference):
    reader = store.RowReader(reference.uri)
    return reader.read(0, reader.num_rows)


def _names(rows):
    """Returns the first target token of every example in the order in which examples lie: `making` names them so."""
    tokens = rows["decoder_target_tokens"]
    if "decoder_segment_ids" not in rows:
        return tokens[:, 0].tolist()
    begins = np.diff(rows["decoder_segment_ids"].astype(int), axis=1, prepend=0) > 0
    return tokens[begins].tolist()


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory):
    """Task a has examples 1000.. (60 of them), task b 2000.. (20)."""
    root = tmp_path_factory.mktemp("root")
    cases = {"a": examples(60, first=1000, seed=1), "b": examples(20, first=2000, seed=2)}
    return root, cases, [task_dataset(str(root), name, rows) for name, rows in cases.items()]


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("family", ["encoder_decoder", "decoder_only"])
def test_every_example_is_there_once_with_all_its_tokens(two_tasks, tmp_path, pack, family):
    _, cases, tasks = two_tasks
    rows = _rows(_assemble(tmp_path, {"a": None, "b": None}, tasks, pack=pack, family=family))
    every = [*cases["a"], *cases["b"]]
    if family == "decoder_only":
        expected = {"decoder_target_tokens": [e["inputs"] + e["targets"] for e in every]}
        assert rows["decoder_loss_weights"].sum() == sum(len(e["targets"]) for e in every)
    else:
        expected = {
            "decoder_target_tokens": [e["targets"] for e in every],
            "encoder_input_tokens": [e["inputs"] for e in every],
        }
        assert sorted(_names(rows)) == [*range(1000, 1060), *range(2000, 2020)]
    for feature, tokens in expected.items():
        stored = rows[feature][rows[feature] > 0].tolist()
        assert collections.Counter(stored) == collections.Counter(itertools.chain.from_iterable(tokens))


def test_inputs_and_targets_of_an_example_stay_together(two_tasks, tmp_path):
    _, cases, tasks = two_tasks
    rows = _rows(_assemble(tmp_path, {"a": None, "b": None}, tasks))
    by_name = {example["targets"][0]: example for example in (*cases["a"], *cases["b"])}
    for index in range(len(rows["encoder_input_tokens"])):
        for segment in range(1, rows["decoder_segment_ids"][index].max() + 1):
            inputs = rows["encoder_input_tokens"][index][rows["encoder_segment_ids"][index] == segment].tolist()
            targets = rows["decoder_target_tokens"][index][rows["decoder_segment_ids"][index] == segment].tolist()
            assert by_name[targets[0]] == {"inputs": inputs, "targets": targets}


def test_the_manifest_says_what_went_in(two_tasks, tmp_path):
    _, cases, tasks = two_tasks
    reference = _assemble(tmp_path, {"a": 1.0, "b": 1.0}, tasks)
    found, rows = store.read_manifest(reference.uri), _rows(reference)
    a, b = found.tasks["a"], found.tasks["b"]
    assert (a.reads, b.reads, a.epochs, b.epochs) == (60, 60, 1.0, 3.0)
    assert (a.requested_rate, a.realised_rate, b.realised_rate) == (0.5, 0.5, 0.5)
    assert a.fingerprint == tasks[0].fingerprint
    assert b.source.rows == 20
    assert a.tokens["encoder_input_tokens"] == sum(len(e["inputs"]) for e in cases["a"])
    assert b.tokens["decoder_target_tokens"] == 3 * sum(len(e["targets"]) for e in cases["b"])
    assert found.packing.examples == 120
    assert found.packing.rows == found.splits["train"].rows == reference.rows
    share = (rows["encoder_input_tokens"] > 0).mean()
    assert found.packing.efficiency["encoder_input_tokens"] == pytest.approx(share)
    assert share > 0.7
    assert (found.kind, found.order_seed) == ("mixture", 0)


def test_a_small_task_is_repeated_in_another_order_each_time(two_tasks, tmp_path):
    _, _, tasks = two_tasks
    names = [name for name in _names(_rows(_assemble(tmp_path, {"a": 1, "b": 1}, tasks, pack=False))) if name >= 2000]
    turns = [tuple(names[i : i + 20]) for i in (0, 20, 40)]
    assert [sorted(turn) for turn in turns] == [list(range(2000, 2020))] * 3
    assert len(set(turns)) == 3


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_prefix_has_the_rates(two_tasks, tmp_path, shuffle):
    _, _, tasks = two_tasks
    names = _names(_rows(_assemble(tmp_path, {"a": 3, "b": 1}, tasks, pack=False, shuffle=shuffle)))
    from_b = np.cumsum(np.array(names) >= 2000)
    assert np.abs(from_b - np.arange(1, len(names) + 1) / 4).max() <= 2


def test_without_shuffle_the_order_is_the_tasks_own_in_each_pass(two_tasks, tmp_path):
    _, _, tasks = two_tasks
    names = _names(_rows(_assemble(tmp_path, {"a": 1, "b": 1}, tasks, pack=False, shuffle=False)))
    assert [name for name in names if name < 2000] == list(range(1000, 1060))
    assert [name for name in names if name >= 2000] == [*range(2000, 2020)] * 3


def test_passes_are_read_one_after_another(tmp_path):
    """Three passes over ten documents: rows 0-9, 10-19, 20-29 of the task."""
    task = task_dataset(str(tmp_path), "a", examples(30, first=1000), pass_rows=(10, 10, 10))
    names = _names(_rows(_assemble(tmp_path, {"a": None}, [task], pack=False, passes=3)))
    orders = [tuple(name % 10 for name in names[i : i + 10]) for i in (0, 10, 20)]
    for number in range(3):
        assert sorted(names[10 * number : 10 * number + 10]) == list(range(1000 + 10 * number, 1010 + 10 * number))
    assert len(set(orders)) == 3


def test_the_seed_decides_the_order_and_nothing_else_does(two_tasks, tmp_path):
    _, _, tasks = two_tasks
    rates = {"a": None, "b": None}
    one, again, other = (
        _names(_rows(_assemble(tmp_path / folder, rates, tasks, seed=seed)))
        for folder, seed in (("one", 0), ("again", 0), ("other", 1))
    )
    assert one == again
    assert one != other
    assert sorted(one) == sorted(other)


def test_blocks_do_not_show(two_tasks, tmp_path, monkeypatch):
    _, _, tasks = two_tasks
    whole = _names(_rows(_assemble(tmp_path / "whole", {"a": None, "b": None}, tasks)))
    original = mixture.ordering.interleave
    monkeypatch.setattr(mixture.ordering, "interleave", lambda counts, *, seed: original(counts, seed=seed, block=7))
    assert _names(_rows(_assemble(tmp_path / "blocks", {"a": None, "b": None}, tasks))) == whole


def test_the_second_time_it_is_reused_and_the_steps_do_not_matter(two_tasks, tmp_path):
    _, _, tasks = two_tasks
    rates = {"a": None, "b": None}
    first = _assemble(tmp_path, rates, tasks)
    assert (first.reused, first.reason) == (False, "no dataset yet")
    run = resolved_run(str(tmp_path), rates)
    longer = run.config.train.model_copy(update={"total_steps": 7, "batch_size": 2})
    run = run.model_copy(update={"config": run.config.model_copy(update={"train": longer})})
    second = mixture.assemble_mixture(run, vocabulary=VOCABULARY, tasks=tasks)
    assert second == first.model_copy(update={"reused": True, "reason": f"fingerprint {first.fingerprint} unchanged"})


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"pack": False}, "settings"),
        ({"shuffle": False}, "settings"),
        ({"seed": 1}, "settings"),
        ({"rates": {"a": 2, "b": 1}}, "settings"),
        ({"feature_lengths": {"inputs": 24, "targets": 8}}, "settings"),
        ({"vocabulary_ref": VOCABULARY.model_copy(update={"fingerprint": "other"})}, "vocabulary"),
        ({"task_fingerprint": "0123"}, "data"),
    ],
)
def test_what_decides_the_bytes_makes_another_dataset_and_is_named(two_tasks, tmp_path, change, part):
    _, _, tasks = two_tasks
    first = _assemble(tmp_path, {"a": 1, "b": 1}, tasks)
    change = dict(change)
    vocabulary: VocabularyRef = change.pop("vocabulary_ref", VOCABULARY)
    fingerprint = change.pop("task_fingerprint", tasks[1].fingerprint)
    changed = [tasks[0], tasks[1].model_copy(update={"fingerprint": fingerprint})]
    run = resolved_run(str(tmp_path), change.pop("rates", {"a": 1, "b": 1}), **change)
    second = mixture.assemble_mixture(run, vocabulary=vocabulary, tasks=changed)
    assert second.uri != first.uri
    changed = f"{part} changed since fingerprint {first.fingerprint}"
    assert second.reason == ("no dataset of this data yet" if part == "data" else changed)


def test_the_seed_of_an_unshuffled_mixture_does_not_matter(two_tasks, tmp_path):
    _, _, tasks = two_tasks
    first = _assemble(tmp_path, {"a": None, "b": None}, tasks, shuffle=False, seed=0)
    assert _assemble(tmp_path, {"a": None, "b": None}, tasks, shuffle=False, seed=1).uri == first.uri


def test_tasks_of_rate_zero_are_left_out(two_tasks, tmp_path):
    _, _, tasks = two_tasks
    reference = _assemble(tmp_path, {"a": 1, "b": 0}, tasks)
    assert reference.name == "mixture-a"
    assert max(_names(_rows(reference))) < 2000


def test_reads_follow_rates_and_read_every_row_at_least_once():
    assert mixture.planned_reads({"a": None, "b": None}, {"a": 70, "b": 7}) == {"a": 70, "b": 7}
    assert mixture.planned_reads({"a": 3, "b": 1}, {"a": 60, "b": 5}) == {"a": 60, "b": 20}
    assert mixture.planned_reads({"a": 0.1, "b": 0.9}, {"a": 50, "b": 60}) == {"a": 50, "b": 450}


def test_too_many_repeats_are_refused_before_anything_is_written(tmp_path):
    tasks = [task_dataset(str(tmp_path), "a", examples(40)), task_dataset(str(tmp_path), "b", examples(3))]
    message = r"task 'b' has 3 examples and would be read 120 times to make up 0.9 of the mixture; at most 100"
    with pytest.raises(errors.ConfigError, match=message):
        _assemble(tmp_path, {"a": 1, "b": 9}, tasks)
    assert not list((tmp_path / "datasets").glob("mixture*"))


def test_rates_for_some_tasks_only_are_refused(two_tasks, tmp_path):
    _, _, tasks = two_tasks
    with pytest.raises(errors.ConfigError, match=r"task 'b' has no rate and others have; .* it would be 20"):
        _assemble(tmp_path, {"a": 1.0, "b": None}, tasks)


def test_a_task_without_training_examples_is_refused(two_tasks, tmp_path):
    _, _, tasks = two_tasks
    empty = task_dataset(str(tmp_path), "b", [])
    with pytest.raises(errors.DataError, match=r"task 'b' has no training examples .*; mend its source or set its"):
        _assemble(tmp_path, {"a": None, "b": None}, [tasks[0], empty])
    with pytest.raises(errors.DataError, match=r"no dataset was made for unknown task 'b'.* known: a"):
        _assemble(tmp_path, {"a": None, "b": None}, tasks[:1])


def test_fewer_rows_than_a_batch_are_refused_with_the_counts(tmp_path):
    task = task_dataset(str(tmp_path), "a", examples(3))
    for _ in range(2):  # also when the dataset is there already
        with pytest.raises(errors.DataError, match="the tasks give 3 rows, fewer than one batch of 8; add data"):
            _assemble(tmp_path, {"a": None}, [task], batch_size=8, pack=False)


def test_damage_in_a_task_is_not_mixed_in(tmp_path):
    task = task_dataset(str(tmp_path), "a", examples(40))
    path = f"{task.uri}/train/targets/c/0/0"
    with open(path, "r+b") as handle:
        handle.seek(40)
        byte = handle.read(1)
        handle.seek(40)
        handle.write(bytes([byte[0] ^ 4]))
    with pytest.raises(errors.IntegrityError, match="train/targets/c/0/0 has checksum"):
        _assemble(tmp_path, {"a": None}, [task])
    assert manifest.load(task.uri) is not None
    assert not list((tmp_path / "datasets").glob("mixture*"))


def test_a_long_list_of_tasks_still_names_a_folder(tmp_path):
    rates = {f"a_task_with_a_long_name_{number}": 1.0 for number in range(20)}
    name = mixture.mixture_name(resolved_run(str(tmp_path), rates))
    assert len(name) == 100
    assert name != mixture.mixture_name(resolved_run(str(tmp_path), {**rates, "one_more": 1.0}))
