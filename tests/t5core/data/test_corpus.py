import subprocess
import sys

import pytest

from t5core import errors
from t5core.data import corpus


@pytest.fixture(scope="module")
def docs():
    return corpus.documents("python_docs")


@pytest.fixture(scope="module")
def docstrings():
    return corpus.documents("python_docstrings")


def named(documents, inputs):
    return [document for document in documents if document.columns["inputs"].startswith(inputs)]


def test_the_corpora_are_large_enough_to_train_on(docs, docstrings):
    assert len(docs) > 5000
    assert len(docstrings) > 4000
    assert sum(len(document.columns["text"]) for document in docs) > 1_500_000


def test_docs_hold_help_topics_and_docstrings(docs):
    texts = {document.columns["text"] for document in docs}
    assert any(text.startswith('The "try" statement') for text in texts)
    assert any("Join two or more pathname components" in text for text in texts)


def test_a_row_is_a_signature_and_a_first_sentence(docstrings):
    (join,) = named(docstrings, "posixpath.join(")
    assert join.columns["inputs"] == "posixpath.join(a, *p)"
    assert join.columns["targets"] == "Join two or more pathname components, inserting '/' as needed."
    assert join.place.startswith("posixpath.py:")
    (method,) = named(docstrings, "collections.Counter.most_common(")
    assert method.columns["inputs"] == "collections.Counter.most_common(self, n=None)"


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("One sentence.\n\nMore.", "One sentence."),
        ("Over\ntwo lines. More.", "Over two lines."),
        ("Does a thing, e.g. this one. More.", "Does a thing, e.g. this one."),
        ("No full stop", "No full stop"),
        ("Version 3.11 is one word. More.", "Version 3.11 is one word."),
    ],
)
def test_first_sentences(docstring, sentence):
    assert corpus._first_sentence(docstring) == sentence


def test_both_corpora_decide_a_docstring_s_side_by_the_same_key(docs, docstrings):
    assert {document.key for document in docstrings} <= {document.key for document in docs}


def test_no_text_is_blank_and_no_test_is_read(docs, docstrings):
    assert all(value.strip() for document in (*docs, *docstrings) for value in document.columns.values())
    folders = {part for document in docs for part in document.place.split("/")[:-1]}
    assert not folders & {"test", "tests", "site-packages"}


def test_another_process_reads_the_same_and_imports_nothing_of_it():
    script = (
        "import sys; from t5core.data import corpus; from t5core import storage\n"
        "before = set(sys.modules)\n"
        "both = ('python_docs', 'python_docstrings')\n"
        "found = [[d.columns, d.place] for name in both for d in corpus.documents(name)]\n"
        "print(storage.fingerprint(found), corpus.digest(), *sorted(set(sys.modules) - before))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    from t5core import storage

    here = [[d.columns, d.place] for name in ("python_docs", "python_docstrings") for d in corpus.documents(name)]
    assert output[:2] == [storage.fingerprint(here), corpus.digest()]
    assert not {"turtle", "tkinter", "pydoc_data.topics", "unittest"} & set(output[2:])


def test_an_unknown_corpus_is_told_with_the_nearest():
    with pytest.raises(errors.ConfigError) as caught:
        corpus.documents("python_doc")
    assert str(caught.value) == (
        "unknown builtin corpus 'python_doc'; did you mean 'python_docs'? known: python_docs, python_docstrings"
    )
