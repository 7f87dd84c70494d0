import os
import shutil

import pytest

from t5core import errors
from t5core.checkpoints import enclosure


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model" / "inner").mkdir(parents=True)
    (tmp_path / "model" / "a").write_bytes(b"123")
    (tmp_path / "model" / "inner" / "b").write_bytes(b"12345")
    (tmp_path / "secret").write_bytes(b"secret")
    return tmp_path / "model"


def test_files_are_listed_with_their_sizes(folder):
    assert enclosure.files_of(str(folder)) == {"a": 3, "inner/b": 5}


def test_a_link_within_the_folder_is_a_file(folder):
    os.symlink("inner/b", folder / "c")
    assert enclosure.files_of(str(folder))["c"] == 5


@pytest.mark.parametrize("target", ["../../secret", "/etc/hostname", "../..", "../inner/../../secret"])
def test_links_that_lead_out_are_refused(folder, target):
    os.symlink(target, folder / "inner" / "c")
    with pytest.raises(errors.CheckpointError, match="inner/c is a link that leads out of"):
        enclosure.files_of(str(folder))


def test_a_link_to_nothing_and_what_is_no_file_are_refused(folder):
    os.symlink("nothing", folder / "c")
    with pytest.raises(errors.CheckpointError, match="is a link to 'nothing', where nothing is; copy the file"):
        enclosure.files_of(str(folder))
    (folder / "c").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(errors.CheckpointError, match="pipe is not a file of its own; copy the checkpoint without it"):
        enclosure.files_of(str(folder))


def test_a_digest_follows_names_and_content_and_not_the_place(folder, tmp_path):
    def digest(where):
        return enclosure.content_digest(str(where), enclosure.files_of(str(where)))

    before = digest(folder)
    shutil.copytree(folder, tmp_path / "moved")
    assert digest(tmp_path / "moved") == before
    (tmp_path / "moved" / "a").write_bytes(b"124")
    assert digest(tmp_path / "moved") != before
    (folder / "a").rename(folder / "z")
    assert digest(folder) != before
