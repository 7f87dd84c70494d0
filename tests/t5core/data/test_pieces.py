"""Files cut into pieces: every row once, in order, with its place, wherever the cuts fall."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from t5core.data import pieces, plain_rows
from t5core.data.files import Piece

TEXTS = [f"row {number} " + "é☃x" * (number % 7) for number in range(60)]


def write_txt(file):
    file.write_text("\ufeff" + "\n".join(TEXTS))  # a byte order mark, and no line feed at the end


def write_jsonl(file):
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))


def write_tsv(file):
    file.write_text("note\ttext\n" + "".join(f"n\t{text}\n" for text in TEXTS))


def write_csv(file):
    file.write_text("note,text\n" + "".join(f'"a\nb",{text}\n' for text in TEXTS))


def write_parquet(file):
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), file, row_group_size=7)


WRITERS = {"txt": write_txt, "jsonl": write_jsonl, "tsv": write_tsv, "csv": write_csv, "parquet": write_parquet}


def written(folder, suffix):
    file = folder / f"a.{suffix}"
    WRITERS[suffix](file)
    return str(file)


@pytest.mark.parametrize("size", [1, 17, 100, 1 << 20, None])
@pytest.mark.parametrize("suffix", WRITERS)
def test_the_pieces_hold_every_row_once_and_know_its_place(tmp_path, suffix, size):
    file = written(tmp_path, suffix)
    whole = list(plain_rows.read(Piece(file), columns=["text"]))
    assert [row.columns["text"] for row in whole] == TEXTS
    found = pieces.pieces(file, size=size)
    assert [row for piece in found for row in plain_rows.read(piece, columns=["text"])] == whole
    if size == 1 and suffix != "csv":
        assert len(found) > 5
    if size is None:
        assert len(found) == 1


@pytest.mark.parametrize("suffix", WRITERS)
def test_no_piece_has_more_rows_than_it_has_lines(tmp_path, suffix):
    for piece in pieces.pieces(written(tmp_path, suffix), size=50):
        assert len(list(plain_rows.read(piece, columns=["text"]))) <= piece.lines


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_an_empty_file_is_a_piece_without_rows(tmp_path, suffix):
    (tmp_path / f"a.{suffix}").write_text("")
    (piece,) = pieces.pieces(str(tmp_path / f"a.{suffix}"))
    assert list(plain_rows.read(piece, columns=["text"])) == []
    assert piece.lines == 0


def test_a_huge_file_is_cut_into_a_bounded_number(tmp_path, monkeypatch):
    file = written(tmp_path, "txt")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1)
    monkeypatch.setattr(pieces, "_MOST_PIECES", 4)
    assert 2 <= len(pieces.pieces(file)) <= 5
