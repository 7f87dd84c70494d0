"""Tasks tokenised in shares: their number changes no bit, the source is looked at once, no work is done twice."""

import os
import random
import shutil
import subprocess
import sys
import threading
import time

import pytest

from t5core import errors, storage
from t5core.config.data_schema import TaskConfig
from t5core.config.edges import ShareRequest
from t5core.data import outline, pieces, store, text_shards, worker
from t5core.data.files import Piece
from t5core.data.materialise import materialise_survey, materialise_task, survey_task, tokenise_share
from t5core.data.shards import Part, Plan
from t5core.data.sources import TaskSource
from t5core.data.tokenising import SHARE_BYTES, Tokenising, shares_of
from t5core.data.work import Work
from t5core.stages import data
from tests.t5core.data.task_runs import request_of, run_of

pytestmark = pytest.mark.xdist_group("seqio")

PIECE_BYTES = 4000
MODULE = f"{__package__}.registered_tasks"

# Makes a share in a process of its own, and rests for some seconds when it has made so many parts of it.
PROGRAM = """
import pathlib, sys, time
from t5core.config.edges import ShareRequest
from t5core.data import pieces, text_shards
from t5core.data.materialise import tokenise_share

request, sign, parts, seconds = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
make, made = text_shards.make, []

def resting(*args):
    if len(made) == parts:
        sign.touch()
        time.sleep(seconds)
    make(*args)
    made.append(args)

text_shards.make = resting
print(tokenise_share(ShareRequest.model_validate_json(request)).made)
"""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", PIECE_BYTES)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Some 14 pieces of text."""
    draw = random.Random(0)
    words = [begin + end for begin in "bdfgklmnprst" for end in ("alo", "eru", "inda", "ox")]
    lines = (" ".join(draw.choices(words, k=draw.randint(3, 60))) for _ in range(400))
    file = tmp_path_factory.mktemp("text") / "a.txt"
    file.write_text("\n".join(lines))
    return str(file)


def request(root, file, **settings):
    return request_of(run_of(root, [{"name": "t", "files": [str(file)]}], **{"workers": 1, "passes": 2, **settings}))


def in_shares(ordered, monkeypatch):
    """Returns a dataset made as a cluster does, the last share first; nothing may be left to make in the end."""
    survey = survey_task(ordered)
    requests = data.share_out([survey])
    made = [tokenise_share(share).made for share in reversed(requests)]
    assert all(made)
    with monkeypatch.context() as patch:
        patch.setattr(Tokenising, "tokenise", None)
        return len(requests), materialise_survey(survey)


def files_of(dataset):
    return store.read_manifest(dataset.uri).files


@pytest.fixture(scope="module")
def straight(file, tmp_path_factory):
    """Made by one call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", PIECE_BYTES)
        return materialise_task(request(tmp_path_factory.mktemp("straight"), file))


@pytest.mark.parametrize(("shares", "workers"), [(1, 1), (2, 2), (3, 1), (7, 1)])
def test_the_number_of_shares_changes_no_bit(straight, file, tmp_path, monkeypatch, shares, workers):
    count, dataset = in_shares(request(tmp_path, file, shares=shares, workers=workers), monkeypatch)
    assert count == shares
    assert dataset.fingerprint == straight.fingerprint
    assert (dataset.reused, dataset.reason) == (False, "no dataset yet")
    assert files_of(dataset) == files_of(straight)
    assert [entry.name for entry in (tmp_path / "datasets").iterdir()] == [dataset.uri.rpartition("/")[2]]
    assert [entry.name for entry in (tmp_path / "made").iterdir()] == [f"{dataset.uri.rpartition('/')[2]}.json"]


def test_one_call_takes_the_shares_too(straight, file, tmp_path, capsys):
    dataset = materialise_task(request(tmp_path, file, shares=3))
    assert files_of(dataset) == files_of(straight)
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"  tokenise t, share {number} of 3" for number in (1, 2, 3)
    ]


def test_files_of_a_seqio_task_are_shared_out(tmp_path, monkeypatch):
    found = []
    for shares in (1, 3):
        run = run_of(tmp_path / str(shares), [{"name": "registered_in_files"}], module=MODULE, passes=2, shares=shares)
        count, dataset = in_shares(request_of(run), monkeypatch)
        assert count == shares
        found.append(files_of(dataset))
    assert found[0] == found[1]


def test_the_files_of_a_seqio_source_are_weighed_and_names_of_anything_else_are_not(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    shards = [str(tmp_path / "a"), str(tmp_path / "a"), "train-of-a-function"]
    assert worker.call("t5core.data.seqio_materialise:_bytes_of", shards) == 10


def test_the_source_is_looked_at_once(file, tmp_path, monkeypatch):
    look, looks = TaskSource._look, []
    monkeypatch.setattr(TaskSource, "_look", lambda self: looks.append(self) or look(self))
    in_shares(request(tmp_path, file, shares=3), monkeypatch)
    assert len(looks) == 1


def test_an_outline_that_is_damaged_is_made_again(straight, file, tmp_path):
    survey = survey_task(request(tmp_path, file, shares=2))
    place = storage.path(f"{Tokenising(survey).folder.uri}/{outline.FILE_NAME}")
    content = place.read_bytes()
    of_another_version = b'{"scan":null}'
    sealed = storage.digest(of_another_version).encode() + b"\n" + of_another_version
    assert b'"train":389' in content
    for damaged in (content.replace(b'"train":389', b'"train":388'), content[:-7], b"", sealed):
        place.write_bytes(damaged)
        tokenise_share(ShareRequest(survey=survey, index=1))
        assert place.read_bytes() == content
        place.write_bytes(damaged)
    assert files_of(materialise_survey(survey)) == files_of(straight)


def start(request, sign, *, parts, seconds):
    """Starts to make a share; the process rests when it has made so many parts."""
    arguments = [request.model_dump_json(), str(sign), str(parts), str(seconds)]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, text=True)
    while not sign.exists():
        assert process.poll() is None
        time.sleep(0.02)
    return process


def test_two_runs_at_once_make_a_share_once(file, tmp_path, capsys):
    share = ShareRequest(survey=survey_task(request(tmp_path, file, shares=2)), index=1)
    first = start(share, tmp_path / "sign", parts=0, seconds=2)
    assert tokenise_share(share).made == 0
    assert first.communicate()[0].splitlines()[-1] == str(len(parts_of(share)))
    assert ".share-2-of-2 is being made by another run: waiting for it" in capsys.readouterr().out


def parts_of(share):
    return Tokenising(share.survey)._parts(share.index)


def test_a_share_whose_process_dies_goes_on_where_it_was(straight, file, tmp_path, monkeypatch, capsys):
    """Another run that waits for it takes it over, with the parts that are finished."""
    share = ShareRequest(survey=survey_task(request(tmp_path, file, shares=2)), index=0)
    victim = start(share, tmp_path / "sign", parts=3, seconds=600)
    kept = Tokenising(share.survey).folder.names()
    rewritten, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda here, there: rewritten.append(str(there)) or replace(here, there))
    threading.Timer(0.5, victim.kill).start()
    made = tokenise_share(share).made
    victim.communicate()
    assert made == len(parts_of(share)) - 3
    said = capsys.readouterr().out
    assert "waiting for it" in said
    assert f"  tokenise t, share 1 of 2: 3 of {made + 3} parts are there from an earlier attempt" in said
    names = {os.path.basename(name) for name in rewritten}
    assert len(kept) == 5, "the validation split, and two pieces in two passes"
    assert not kept & names
    assert "train-000001-000.npz" not in names, "that is the other share's"
    assert files_of(materialise_survey(share.survey)) == files_of(straight)


def test_a_share_of_a_dataset_that_is_there_by_now_has_nothing_to_do(file, tmp_path, monkeypatch):
    survey = survey_task(request(tmp_path, file, shares=2))
    dataset = materialise_task(request(tmp_path, file))
    monkeypatch.setattr(TaskSource, "_look", None)
    assert tokenise_share(ShareRequest(survey=survey, index=0)).made == 0
    assert materialise_survey(survey).reused
    assert [entry.name for entry in (tmp_path / "datasets").iterdir()] == [dataset.uri.rpartition("/")[2]]


def test_a_dataset_that_is_there_costs_nothing(straight, file, monkeypatch):
    monkeypatch.setattr(TaskSource, "_look", None)
    ordered = request(straight.uri.rpartition("/datasets/")[0], file, shares=5)
    survey = survey_task(ordered)
    (share,) = data.share_out([survey, survey])
    with monkeypatch.context() as patch:
        patch.setattr(Tokenising, "__init__", None)
        assert (survey.shares, tokenise_share(share).made) == (0, 0)
    again = materialise_survey(survey)
    assert (again.reused, again.reason) == (True, f"fingerprint {straight.fingerprint} unchanged")


def test_a_dataset_that_is_lost_after_the_survey_is_made_again(straight, file, tmp_path):
    ordered = request(tmp_path, file)
    lost = storage.path(materialise_task(ordered).uri)
    survey = survey_task(ordered)
    lost.rmtree()
    again = materialise_survey(survey)
    assert files_of(again) == files_of(straight)
    assert again.reason.endswith(f"and gone from {lost}")


def test_a_shard_that_is_damaged_is_made_again_by_the_next_attempt(straight, file, tmp_path):
    survey = survey_task(request(tmp_path, file, shares=2))
    for share in data.share_out([survey]):
        tokenise_share(share)
    folder = Tokenising(survey).folder
    shard, whole = storage.path(f"{folder.uri}/train-000004-001.npz"), folder.names()
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(errors.RecoverableError, match=r"train-000004-001.npz was damaged and is deleted; run again"):
        materialise_survey(survey)
    assert folder.names() == whole - {shard.name}
    assert files_of(materialise_survey(survey)) == files_of(straight)


def test_a_mistake_in_one_share_is_one_line_and_leaves_nothing_that_looks_finished(file, tmp_path):
    text = tmp_path / "a.txt"
    shutil.copy(file, text)
    survey = survey_task(request(tmp_path / "runs", text, shares=2))
    tokenise_share(ShareRequest(survey=survey, index=0))
    content = text.read_bytes()
    text.write_bytes(content[:10] + b"\xff" + content[11:])
    storage.path(survey.request.run.uri).mkdir(parents=True)
    with pytest.raises(errors.DataError, match=r"a.txt:1.*UTF-8") as caught:
        data.tokenise(ShareRequest(survey=survey, index=1))
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "runs/datasets").iterdir()) == []
    assert storage.read_json(f"{survey.request.run.uri}/summary.json")["failure"]["where"] == "tokenise t"


def test_the_record_of_a_dataset_counts_the_seconds_of_all_who_worked_on_it(file, tmp_path, monkeypatch):
    survey = survey_task(request(tmp_path, file, shares=2)).model_copy(update={"seconds": 1000.0})
    shares = [tokenise_share(share) for share in data.share_out([survey])]
    assert all(share.seconds > 0 for share in shares)
    tokenising = Tokenising(survey)
    assert tokenising.seconds() == pytest.approx(sum(share.seconds for share in shares))
    data.materialise(survey)
    record = storage.read_json(f"{survey.request.run.uri}/records/stage-materialise-t.json")
    assert 1000 < record["seconds"] < 2000
    assert tokenising.seconds() == 0


def plan(parts, *, size=0):
    parts = tuple(Part(split="train", index=index, passes=1) for index in range(parts))
    return Plan(sides=("targets",), parts=parts, size=size)


def test_there_is_a_share_for_each_gibibyte_unless_a_number_is_given():
    sizes = (0, 1, SHARE_BYTES, SHARE_BYTES + 1, 10 * SHARE_BYTES, 10_000 * SHARE_BYTES)
    assert [shares_of(plan(5000, size=size), wanted=None) for size in sizes] == [1, 1, 1, 2, 10, 256]
    assert shares_of(plan(5000, size=1), wanted=700) == 700
    assert shares_of(plan(3, size=1), wanted=700) == 3


def test_an_outline_comes_back_as_it_was(tmp_path):
    named = {"files": tmp_path / "a.txt", "validation_files": tmp_path / "b.txt"}
    for text in named.values():
        text.write_text("".join(f"{text.name} {number}\n" for number in range(40)))
    task = {"name": "t", **{setting: [str(text)] for setting, text in named.items()}}
    ordered = request_of(run_of(tmp_path, [task]))
    stored = Tokenising(survey_task(ordered)).outline
    work = Work(request=ordered, scan=TaskSource(TaskConfig(**task)).scan)
    assert (stored.scan, stored.plan) == (work.scan, text_shards.plan(work))
    assert max(stored.scan.hold_out.hashes) > 2**63
    assert isinstance(stored.plan.parts[1].piece[1], Piece)


@pytest.mark.parametrize("change", ["written again", "another file"])
def test_text_that_changes_while_it_is_tokenised_makes_no_dataset(change, file, tmp_path):
    copy, root = tmp_path / "text" / "a.txt", tmp_path / "runs"
    copy.parent.mkdir()
    shutil.copy(file, copy)
    found = survey_task(request(root, copy.parent / "*.txt", shares=2))
    for index in range(found.shares):
        tokenise_share(ShareRequest(survey=found, index=index))
    if change == "written again":
        copy.write_text(copy.read_text().swapcase())  # as long as before
    else:
        (copy.parent / "b.txt").write_text("one more\n")
    with pytest.raises(errors.DataError, match="task 't': its files changed while they were tokenised"):
        materialise_survey(found)
    assert list((root / "datasets").iterdir()) == []
    again = materialise_task(request(root, copy.parent / "*.txt", shares=2))
    assert not again.reused
