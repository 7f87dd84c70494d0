"""Datasets as people read them: every example taken apart again, sentinels shown, and damage or mistakes in a line."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from t5core import errors
from t5core.data import frames, manifest, mixture, spelling, unpacking, vocabulary_lookup
from t5core.data.__main__ import main
from t5core.data.vocabulary import ByteVocabulary
from t5core.rundir import RunDirectory, StageRecord
from tests.t5core.data import making

BYTES = ByteVocabulary(extra_ids=10)
LENGTHS = {"inputs": 24, "targets": 16}
REFERENCE = making.VOCABULARY.model_copy(update={"fingerprint": BYTES.fingerprint, "extra_ids": 10, "size": 269})


def example(number: int) -> dict[str, list[int]]:
    """An example that names itself, with a sentinel on either side and both lengths of its own."""
    cut = [BYTES.sentinel(number % 3)]
    inputs = [*BYTES.encode(f"in{number}" + "x" * (number % 7)), *cut, BYTES.eos_id]
    return {"inputs": inputs, "targets": [*cut, *BYTES.encode(f"out\n{number}"), BYTES.eos_id]}


EXAMPLES = [example(number) for number in range(12)]


def datasets(root, family="encoder_decoder", **data):
    task = making.task_dataset(
        str(root),
        "mine",
        EXAMPLES,
        validation=EXAMPLES[:2],
        lengths=LENGTHS,
        parts={"data": "d", "vocabulary": BYTES.fingerprint},
    )
    run = making.resolved_run(str(root), {"mine": None}, feature_lengths=LENGTHS, family=family, **data)
    return run, task, mixture.assemble_mixture(run, vocabulary=REFERENCE, tasks=[task])


def pairs(uri):
    return sorted((found.inputs.tolist(), found.targets.tolist()) for found in unpacking.read_examples(uri))


@pytest.mark.parametrize("family", ["encoder_decoder", "decoder_only"])
@pytest.mark.parametrize("pack", [True, False])
def test_every_example_comes_out_as_it_went_in(tmp_path, family, pack):
    _, task, mixed = datasets(tmp_path, family, pack=pack)
    expected = sorted((given["inputs"], given["targets"]) for given in EXAMPLES)
    assert pairs(task.uri) == expected
    assert pairs(mixed.uri) == expected
    segments = [found.segment for found in unpacking.read_examples(mixed.uri)]
    assert (max(segments) > 1) == pack


def test_targets_alone_have_no_inputs(tmp_path):
    task = making.task_dataset(
        str(tmp_path), "mine", [{"targets": given["targets"]} for given in EXAMPLES], lengths={"targets": 16}
    )
    run = making.resolved_run(str(tmp_path), {"mine": None}, feature_lengths={"targets": 16}, family="decoder_only")
    mixed = mixture.assemble_mixture(run, vocabulary=REFERENCE, tasks=[task])
    assert pairs(mixed.uri) == sorted(([], given["targets"]) for given in EXAMPLES)


def test_rows_can_be_read_from_anywhere(tmp_path):
    _, task, _ = datasets(tmp_path)
    found = list(unpacking.read_examples(task.uri, start=3, stop=5))
    assert [given.row for given in found] == [3, 4]
    assert found[0].inputs.tolist() == EXAMPLES[3]["inputs"]


def test_everything_shows_in_the_text():
    assert spelling.spell(EXAMPLES[1]["targets"], BYTES) == "<extra_id_1>out\\n1</s>"
    assert spelling.spell([*BYTES.encode("no end")], BYTES) == "no end"


def test_a_frame_has_a_line_for_each_example(tmp_path):
    _, task, mixed = datasets(tmp_path)
    frame = frames.to_pandas(mixed.uri)
    assert sorted(frame["targets_ids"]) == sorted(given["targets"] for given in EXAMPLES)
    assert set(frame["inputs"]) == {spelling.spell(given["inputs"], BYTES) for given in EXAMPLES}
    assert frame.groupby("row")["segment"].max().max() > 1
    assert frames.to_pandas(task.uri, split="validation", start=1)["row"].tolist() == [1]
    assert frames.to_pandas(task.uri, start=5, stop=5).columns.tolist() == frame.columns.tolist()


def test_the_vocabulary_is_found_by_its_fingerprint_alone(tmp_path):
    _, task, _ = datasets(tmp_path)
    assert vocabulary_lookup.vocabulary_of(task.uri) == BYTES
    other = making.task_dataset(str(tmp_path), "other", EXAMPLES, lengths=LENGTHS, parts={"vocabulary": "elsewhere"})
    with pytest.raises(errors.DataError, match=r"tokenised with vocabulary elsewhere, which is not .*vocabularies"):
        vocabulary_lookup.vocabulary_of(other.uri)


def shown(capsys, *arguments):
    main(["inspect", *arguments])
    return capsys.readouterr().out


def test_the_manifest_and_rows_are_shown(tmp_path, capsys):
    _, task, mixed = datasets(tmp_path)
    text = shown(capsys, mixed.uri, "--rows", "1")
    described = manifest.load(mixed.uri)
    for expected in (mixed.fingerprint, described.parts["settings"], "12 examples packed into", "reads per row"):
        assert expected in text
    first = next(unpacking.read_examples(mixed.uri))
    assert spelling.spell(first.inputs, BYTES) in text
    assert "row 0: " in text
    assert "row 1: " not in text
    ids = " ".join(map(str, first.targets.tolist()))
    assert ids not in text
    assert ids in shown(capsys, mixed.uri, "--rows", "1", "--ids")
    assert "row " not in shown(capsys, task.uri, "--rows", "0").replace("per row", "")


def test_a_run_directory_shows_what_it_trains_on(tmp_path, capsys):
    run, task, mixed = datasets(tmp_path)
    directory = RunDirectory(run.uri)
    directory.claim(run, identity="r", config_text="")
    with pytest.raises(errors.DataError, match="has no mixture yet"):
        main(["inspect", run.uri])
    for stage, name, made in (("materialise", "mine", task), ("assemble", "", mixed)):
        directory.write_stage(
            StageRecord(
                stage=stage, name=name, reused=False, reason="", seconds=0, fingerprint=made.fingerprint, uri=made.uri
            )
        )
    assert f"mixture {mixed.name}\n" in shown(capsys, run.uri)
    assert "task mine\n" in shown(capsys, run.uri, "--task", "mine")
    assert frames.to_pandas(run.uri).equals(frames.to_pandas(mixed.uri))
    assert frames.to_pandas(run.uri, task="mine").equals(frames.to_pandas(task.uri))
    with pytest.raises(errors.DataError, match="did you mean 'mine'"):
        main(["inspect", run.uri, "--task", "mime"])


def test_mistakes_are_told_in_one_line(tmp_path):
    _, task, _ = datasets(tmp_path)
    mistakes = {
        f"{tmp_path}/nothing": "holds nothing; name a folder below datasets/",
        str(tmp_path): "holds neither a dataset nor a run",
        f"{task.uri} --split tset": "unknown split 'tset'",
        f"{task.uri} --start 12": "--start 12 is outside the 12 rows of split 'train'; give 0 to 11",
        f"{task.uri} --start -1": "--start -1 is outside",
        f"{task.uri} --rows -1": "--rows -1 is negative",
        f"{task.uri} --task mine": "task 'mine' has no effect",
    }
    for arguments, message in mistakes.items():
        with pytest.raises(errors.DataError) as told:
            main(["inspect", *arguments.split()])
        assert message in str(told.value)
        assert "\n" not in str(told.value)


def test_damage_is_told_and_not_shown_as_text(tmp_path):
    _, task, _ = datasets(tmp_path)
    shard = next(pathlib.Path(task.uri).glob("train/targets/c/*/*"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(errors.IntegrityError, match="train/targets"):
        list(unpacking.read_examples(task.uri))


def test_a_reader_may_close_the_pipe(tmp_path):
    _, task, _ = datasets(tmp_path)
    command = f"{sys.executable} -m t5core.data inspect {task.uri} --rows 12 | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["task mine", "0"]
    assert done.stderr == ""


def test_padding_inside_is_kept_and_at_the_end_is_not():
    assert unpacking._filled(np.array([3, 0, 4, 0, 0])).tolist() == [3, 0, 4]
    assert unpacking._filled(np.zeros(3, np.int64)).tolist() == []
