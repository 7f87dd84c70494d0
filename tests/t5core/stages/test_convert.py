"""Conversions as the workflow and the shell make them: what is written, what is said, what is reused or refused."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5core import errors, records, sharing, storage
from t5core.checkpoints import index
from t5core.checkpoints.record import Provenance, SchedulePosition
from t5core.checkpoints.store import CheckpointStore
from t5core.config.convert_schema import ConvertConfig
from t5core.importers import contents, formats, own, parity, t5x
from t5core.importers.__main__ import main
from t5core.lock import RunLock
from t5core.stages import convert
from tests.t5core import trained_runs
from tests.t5core.importers.making import HUGGINGFACE, T5X, architecture, made, saved


def converted(tmp_path, *overrides):
    places = [f"run.root={tmp_path}", *overrides]
    conversion = convert.convert(convert.inspect(ConvertConfig(), places))
    summary, page = convert.compare(conversion)
    return conversion, summary, page


def parity_of(summary):
    return records.read(summary.parity, parity.Parity)


def test_a_t5x_checkpoint_is_imported_with_its_lineage(tmp_path):
    conversion, summary, page = converted(tmp_path, f"source.uri={T5X}", "destination.format=t5flow")
    record = index.read_record(*index.locate(conversion.checkpoint))
    assert (summary.status, summary.step, summary.largest_logits_difference) == ("equal", 30, 0.0)
    origin = record.provenance.imported_from
    assert (origin.format, origin.uri, origin.digest) == ("t5x", str(T5X), conversion.plan.source.digest)
    assert origin.architecture.family == "decoder_only"
    assert record.digest == t5x.read(str(T5X)).digest() == conversion.digest
    assert {path.split("/")[0] for path in record.leaves} == {"params", "opt_state", "step"}
    report = parity_of(summary)
    assert len(report.tensors) == summary.tensors == 22
    assert [c.optimizer_state for c in report.comparisons] == ["equal", "equal"]
    assert (report.unused, report.missing, report.left_out) == ([], [], [])
    text = (tmp_path / "convert" / "parity.txt").read_text()
    assert "target/decoder/layers_0/mlp/wo/kernel" in text
    assert "22 of 22 tensors the same to the bit, optimiser's state equal, largest difference of logits 0" in text
    assert "target/decoder/layers_0/mlp/wo/kernel" in page == (tmp_path / "convert" / "report.html").read_text()


def test_from_hugging_face_through_ours_and_t5x_and_back_nothing_changes(tmp_path):
    chain = [str(HUGGINGFACE)]
    for number, kind in enumerate(("t5flow", "t5x", "huggingface", "t5flow")):
        _, summary, _ = converted(
            tmp_path, f"run.name=c{number}", f"source.uri={chain[-1]}", f"destination.format={kind}"
        )
        chain.append(summary.checkpoint)
    assert own.reference(chain[1]).digest == own.reference(chain[4]).digest
    transposed = [entry for entry in parity_of(summary).tensors if entry.how == "transposed"]
    assert len(transposed) == 39


def test_the_same_conversion_is_made_once_and_another_is_refused(tmp_path):
    source = saved(tmp_path / "model")
    settings = (f"source.uri={source}", "destination.format=t5x")
    first, _, _ = converted(tmp_path, *settings)
    again, _, _ = converted(tmp_path, *settings)
    assert (first.reused, again.reused) == (False, True)
    assert again.checkpoint == first.checkpoint
    with pytest.raises(errors.RunDirectoryError, match=r"holds the conversion of .*; choose another run.name"):
        converted(tmp_path, *settings, "destination.layout=scanned")
    shutil.rmtree(first.checkpoint)
    assert not converted(tmp_path, *settings)[0].reused
    (tmp_path / "convert" / "t5x" / "checkpoint_0" / "more").write_text("x")
    with pytest.raises(
        errors.CheckpointError, match="checkpoint_0 is not what was written there; remove it and run again"
    ):
        converted(tmp_path, *settings)


@pytest.mark.parametrize("kind", ["t5flow", "t5x", "huggingface"])
def test_the_same_conversion_at_the_same_time_is_made_once(tmp_path, monkeypatch, capsys, kind):
    plan = convert.inspect(
        ConvertConfig(),
        [f"run.root={tmp_path}", f"source.uri={saved(tmp_path / 'model')}", f"destination.format={kind}"],
    )
    other = RunLock(f"{plan.uri}/conversion.lock", owner="another run")
    other.acquire()
    first = []

    def wait(seconds):
        other.release()
        first.append(convert.convert(plan))

    monkeypatch.setattr(sharing.time, "sleep", wait)
    second = convert.convert(plan)
    assert f"another conversion writes to {plan.uri}: waiting for it" in capsys.readouterr().out
    assert (first[0].reused, second.reused, second.digest) == (False, True, first[0].digest)


def test_two_conversions_do_not_write_to_one_place_at_once(tmp_path, monkeypatch):
    settings = (f"run.root={tmp_path}", "destination.format=huggingface", f"destination.uri={tmp_path}/out")
    one, two = (
        convert.inspect(ConvertConfig(), [*settings, f"run.name=c{dim}", f"source.uri={saved(tmp_path / dim, model)}"])
        for dim, model in (("6", made()), ("8", made(emb_dim=8)))
    )
    other = RunLock(f"{tmp_path}/out/conversion.lock", owner="another run")
    other.acquire()

    def wait(seconds):
        other.release()
        convert.convert(one)

    monkeypatch.setattr(sharing.time, "sleep", wait)
    with pytest.raises(errors.CheckpointError, match=r"out has a config.json; remove it, or write to another folder"):
        convert.convert(two)
    assert convert.convert(one).reused


def run_of(tmp_path, found, *, config="model: {vocab_size: 40, emb_dim: 6, num_heads: 2, head_dim: 5, mlp_dim: 7}"):
    """Returns a run directory with the checkpoint of a model, as training leaves it."""
    position = SchedulePosition(total_steps=9, batch_size=1)
    provenance = Provenance(
        seed=0, config_fingerprint="c", dataset_fingerprint="d", vocabulary_fingerprint="v", schedule=position
    )
    with CheckpointStore(str(tmp_path / "run" / "checkpoints")) as store:
        store.save(found.step, found.as_tree(), provenance, wait=True)
    if config:
        (tmp_path / "run" / "config.yaml").write_text(f"data: {{tasks: [{{name: a, files: [a.txt]}}]}}\n{config}\n")
    return tmp_path / "run"


def test_the_last_checkpoint_of_a_run_is_exported_and_what_has_no_place_is_said(tmp_path):
    run = run_of(tmp_path, made(step=9, num_decoder_layers=2, with_state=True))
    conversion, summary, _ = converted(tmp_path, f"source.uri={run}")
    tokenizer = "the tokenizer, as the source does not tell its vocabulary: add its spiece.model"
    assert conversion.left_out == ["the optimiser's state", "the step (9)", tokenizer]
    assert parity_of(summary).left_out == conversion.left_out
    assert formats.detect(summary.checkpoint) == "huggingface"


def test_a_run_that_tells_its_vocabulary_is_exported_with_the_tokenizer(tmp_path):
    inputs = trained_runs.trained(tmp_path / "runs")
    conversion, summary, _ = converted(tmp_path, f"source.uri={inputs.run.uri}")
    assert not [what for what in conversion.left_out if "tokenizer" in what]
    config = storage.read_json(f"{summary.checkpoint}/tokenizer_config.json")
    assert config["extra_ids"] == inputs.vocabulary.extra_ids
    assert converted(tmp_path, f"source.uri={inputs.run.uri}")[0].reused


def test_a_checkpoint_of_an_unknown_model_is_refused_until_it_is_named(tmp_path):
    run = run_of(tmp_path, made(step=9, num_decoder_layers=2), config=None)
    with pytest.raises(errors.CheckpointError, match=r"says of which model its checkpoints are; give source.model"):
        converted(tmp_path, f"source.uri={run}")
    model = "{vocab_size: 40, emb_dim: 6, num_heads: 2, head_dim: 5, mlp_dim: %d}"
    with pytest.raises(errors.CheckpointError, match=r"mlp/wi_0/kernel has shape \[6, 7\], not \[6, 8\]"):
        converted(tmp_path, f"source.uri={run}", f"source.model={model % 8}")
    assert converted(tmp_path, f"source.uri={run}", f"source.model={model % 7}")[1].status == "equal"


def test_without_a_source_there_is_something_to_convert(tmp_path, capsys):
    conversion, summary, _ = converted(tmp_path)
    assert conversion.plan.source.format == "t5x"
    assert summary.status == "equal"
    assert "making a tiny T5X checkpoint" in capsys.readouterr().out
    run_of(tmp_path, made(step=9, num_decoder_layers=2))
    (tmp_path / "run").rename(tmp_path / "demo")
    conversion, _, _ = converted(tmp_path, "run.name=other")
    assert conversion.plan.source.uri == str(tmp_path / "demo" / "checkpoints" / "9")


def test_a_difference_is_reported_and_fails_the_conversion(tmp_path):
    plan = convert.inspect(ConvertConfig(), [f"run.root={tmp_path}", f"source.uri={HUGGINGFACE}"])
    conversion = convert.convert(plan)
    tensors = load_file(f"{conversion.checkpoint}/model.safetensors")
    tensors["encoder.final_layer_norm.weight"][0] += 1
    save_file(tensors, f"{conversion.checkpoint}/model.safetensors")
    with pytest.raises(errors.IntegrityError, match=r"differs from its source; .*parity.txt says where"):
        convert.compare(conversion)
    summary = json.loads((tmp_path / "convert" / "summary.json").read_text())
    assert summary["status"] == "different"
    assert summary["largest_logits_difference"] > 1e-3
    assert "differs: encoder/encoder_norm/scale" in (tmp_path / "convert" / "parity.txt").read_text()


def test_a_model_that_has_diverged_is_compared_too():
    found = made()
    diverged = dataclasses.replace(
        found, params={**found.params, "encoder/encoder_norm/scale": np.full(6, np.nan, np.float32)}
    )
    assert parity.compare("", diverged, diverged).is_equal
    assert parity.compare("", diverged, found).logits_difference == float("inf")


def test_logits_move_when_any_parameter_does():
    found = made()
    before = contents.logits(found.architecture, found.params)
    assert before.shape == (2, 12, 40)
    noise = np.random.default_rng(1)
    for path, array in found.params.items():
        moved = {**found.params, path: array + noise.normal(size=array.shape).astype(np.float32)}
        assert np.max(np.abs(contents.logits(found.architecture, moved) - before)) > 1e-4, path


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["source.step=3"], "source.step=3 has no effect on a t5x checkpoint, which has its own"),
        (["destination.layout=scanned"], "destination: layout=scanned has no effect on format huggingface; set format"),
        (["destination.max_shard_bytes=9", "destination.format=t5x"], "max_shard_bytes=9 has no effect on format t5x"),
        (["source.formt=t5x"], "unknown key 'source.formt' (value 't5x'); did you mean 'source.format'?"),
        (["run.name=../up"], "run.name: '../up' cannot name a folder"),
        (["source.format=huggingface"], "has no config.json; give the folder of a Hugging Face model"),
        (["source.format=t5flow"], "is a checkpoint of T5X; convert it first"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides, message, tmp_path):
    with pytest.raises(errors.UserError) as raised:
        converted(tmp_path, f"source.uri={T5X}", *overrides)
    assert message in str(raised.value)


def test_other_places_say_what_is_there(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x80\x04")
    (tmp_path / "text").write_text("x")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for uri, message in (
        (tmp_path / "nothing", "is not there; give the folder of a checkpoint"),
        (tmp_path / "text", "is a file, not a folder; give the folder of a checkpoint"),
        (tmp_path / "model.bin", "may be a pickle, which can run code when it is read; give a folder with safetensors"),
        (tmp_path / "folder", "is no checkpoint of T5X, of Hugging Face or of this project; it holds inner"),
        (T5X.parent, f"holds T5X checkpoints of steps (30,); name one, such as {T5X}"),
    ):
        with pytest.raises(errors.CheckpointError) as raised:
            formats.detect(str(uri))
        assert message in str(raised.value)


def test_the_shell_imports_exports_and_inspects(tmp_path, capsys):
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    main(["import", str(HUGGINGFACE), ours, "--step", "1000"])
    assert own.reference(ours).uri == f"{ours}/1000"
    main(["export", ours, theirs, "--format", "huggingface", "--max-shard-bytes", "100000"])
    assert (tmp_path / "theirs" / "conversion" / "parity.json").is_file()
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 5
    assert "52 tensors, all the same to the bit when read back" in capsys.readouterr().out
    main(["inspect", theirs])
    said = capsys.readouterr().out
    assert "huggingface, step 0" in said
    assert "lm_head.weight -> decoder/logits_dense/kernel float32[64, 384], transposed" in said


def test_the_shell_takes_a_model_and_says_mistakes_in_one_line(tmp_path):
    folder = t5x.write(str(tmp_path), made(mlp_activations=("silu", "linear")))
    model = "model: {vocab_size: 40, emb_dim: 6, num_heads: 2, head_dim: 5, mlp_dim: 7, num_decoder_layers: %d, "
    (tmp_path / "right.yaml").write_text(model % 3 + "mlp_activations: [silu, linear]}")
    (tmp_path / "wrong.yaml").write_text(model % 2 + "mlp_activations: [silu, linear]}")
    (tmp_path / "none.yaml").write_text("run: {name: a}")
    main(["import", folder, str(tmp_path / "ours"), "--model", str(tmp_path / "right.yaml")])
    assert own.read(str(tmp_path / "ours")).architecture == architecture(mlp_activations=("silu", "linear"))
    for name, message in (
        ("wrong", "has num_decoder_layers=3, and 2 was asked for"),
        ("none", "has no section 'model'"),
    ):
        with pytest.raises(errors.UserError) as raised:
            main(["inspect", folder, "--model", str(tmp_path / f"{name}.yaml")])
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
