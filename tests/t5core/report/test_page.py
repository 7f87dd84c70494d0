from __future__ import annotations

import html.parser
import itertools
import json
import pathlib
import platform
import re

import pytest

from t5core import storage
from t5core.config import edges
from t5core.preflight import record
from t5core.report import page, summary
from t5core.report.gather import LOSS, gather
from tests.t5core.report import fake_run

HOSTILE = "</title></style><script>alert('x')</script>\"'>&amp;"
VOID = {"meta", "path", "br", "wbr"}


class Reader(html.parser.HTMLParser):
    """Reads a page into tags, the rows of its tables and its text; unbalanced tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self.text = ""
        self._open: list[str] = []
        self._caption = ""
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "caption":
            self._caption = ""
        if tag == "tr":
            self.tables.setdefault(self._caption, []).append([])
        if tag in ("td", "th"):
            self.tables[self._caption][-1].append(("", dict(attrs).get("title")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.text += " "
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.text += data
        if "caption" in self._open:
            self._caption += data
        elif "td" in self._open or "th" in self._open:
            shown, full = self.tables[self._caption][-1][-1]
            self.tables[self._caption][-1][-1] = (shown + data, full)


def page_of(run: pathlib.Path, status: summary.Status = "completed", **fields: object) -> Reader:
    summary.write_summary(str(run), status=status, **fields)  # pyright: ignore[reportArgumentType]
    text = page.write_report(str(run))
    assert (run / "report.html").read_text(encoding="utf-8") == text
    return Reader(text)


def test_figures_in_the_tables_equal_the_records(run: pathlib.Path):
    shown = page_of(run)
    for task in fake_run.TASKS:
        (head, *rows) = shown.tables[task][:5]
        names = {"loss per target token": LOSS}
        for row, step in zip(rows, (60, 120, 180, 240), strict=True):
            metrics = fake_run.evaluation_metrics(step)[task]
            for (name, _), (value, full) in zip(head[1:], row[1:], strict=True):
                recorded = metrics[names.get(name, name.removesuffix(" (%)"))]
                assert float(full or "") == recorded
                assert float(value) == pytest.approx(recorded, abs=5.1e-3, rel=1e-3)


def test_the_headline_equals_the_records(run: pathlib.Path):
    shown = page_of(run)
    titles = [attributes["title"] for _, attributes in shown.tags if attributes.get("title")]
    assert {repr(fake_run.training_loss(1)), repr(fake_run.training_loss(240))} <= set(titles)
    assert f"{fake_run.evaluation_metrics(240)[fake_run.SENTENCES]['token_f1']} at step 240" in titles
    text = " ".join(shown.text.split())
    assert "7.629 → 2.674 −65 % from step 1 to 240" in text
    assert "Step 240 of 240 · 240 steps trained in 4 segments · 1 min 36 s" in text


def test_stages_and_segments_are_shown_with_outcome_and_reason(tmp_path: pathlib.Path):
    shown = page_of(fake_run.build(tmp_path, reused=True))
    rows = [[text for text, _ in row] for row in shown.tables["Stages"][1:]]
    assert ["materialise", fake_run.SPANS, "reused", "fingerprint 6f1d2c3b4a596877 unchanged"] in [r[:4] for r in rows]
    segments = shown.tables["Segments"][1:]
    assert [row[0][0] for row in segments] == ["0 to 60", "60 to 120", "120 to 180", "180 to 240"]
    assert all(row[1][0] == "reused" for row in segments)
    assert [row[-1][1] for row in segments] == [
        fake_run.checkpoint(tmp_path / "demo", end).digest for end in (60, 120, 180, 240)
    ]


def test_data_is_shown_as_its_manifests_say(run: pathlib.Path):
    shown = page_of(run)
    train = next(row for row in shown.tables["Tasks, tokenised"] if row[0][0] == fake_run.SPANS)
    assert [text for text, _ in train] == [
        fake_run.SPANS, "train", "5,310", "2", "515,070", "164,610", "targets: 37", "empty target: 3", "0.0018 %",
    ]  # fmt: skip
    assert [text for text, _ in shown.tables["Mixture"][1]][4:6] == ["361,000", "1,100,000"]
    assert "segment_ids" not in shown.text
    share = next(row for row in shown.tables["What each task gave to the mixture"] if row[0][0] == fake_run.SPANS)
    assert [text for text, _ in share][1:5] == ["0.75", "0.7501", "5,310", "9,000"]
    assert "93.2 % of encoder_input_tokens" in shown.text
    assert "12,000 examples packed into 9,216 rows" in shown.text


def test_lineage_settings_and_versions_are_shown(run: pathlib.Path):
    shown = page_of(run)
    for name in (fake_run.checkpoint(run, 240).digest, "0f1e2d3c4b5a6978", "aa11bb22cc33dd44", "b1c2d3e4f5061729"):
        assert name in shown.text
    assert fake_run.CONFIG in shown.text
    assert platform.python_version() in {text for row in shown.tables["Versions"] for text, _ in row}


def test_examples_are_shown_with_their_history(run: pathlib.Path):
    text = " ".join(page_of(run).text.split())
    assert "docstring_first_sentence: 8 of 64 predictions at step 240" in text
    assert "step 60 Return the the the the. step 120 Return the file to the file." in text
    assert "prediction ✓ equals the target Shuffle list x in place" in text


def test_whatever_comes_from_outside_is_escaped(run: pathlib.Path):
    step, name = 240, HOSTILE
    path = run / f"records/evaluation-{step:08d}.json"
    content = json.loads(path.read_text())
    content["metrics"] = {name: {name: 1.0, LOSS: 2.0}}
    storage.write_json(path, content)
    file_name = name.replace("/", "|")
    fake_run.write_lines(run / f"predictions/{file_name}-{step:08d}.jsonl", [{name: name, "prediction": name}])
    fake_run.write_lines(run / f"metrics/inference_eval/{file_name}/metrics.jsonl", [{"step": 240, name: 1.0}])
    fake_run.write_stage(run, "verify", reason=name)
    storage.write_text(run / "config.yaml", fake_run.CONFIG + f"# {name}\n")
    shown = page_of(run, "failed", failure=summary.Failure(where=name, why=name))
    assert not [tag for tag, _ in shown.tags if tag == "script"]
    assert "<script" not in (run / "report.html").read_text()
    assert shown.text.count(HOSTILE) >= 8
    assert sum(tag == "title" and not attributes for tag, attributes in shown.tags) > 0


def test_half_a_surrogate_pair_does_not_stop_a_report(run: pathlib.Path):
    lines = [{"inputs": "a", "target": "b", "prediction": "half \ud83d of a smile"}]
    path = run / f"predictions/{fake_run.SENTENCES}-00000240.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "half ? of a smile" in page_of(run).text


def test_a_stopped_run_shows_its_reason_and_where_the_loss_was_lost(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=120, nan_from=95)
    text = " ".join(page_of(run, "stopped", stop_reason="terminate on NaN: loss is nan").text.split())
    assert "Stopped: terminate on NaN: loss is nan" in text
    assert "7.629 → NaN from step 1 to 120" in text
    assert "training: NaN at step 95" in text


def test_a_failed_run_shows_where_and_why_and_what_helps(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=0)
    text = " ".join(page_of(run, "failed", failure=summary.Failure(where="initialise", why="no device")).text.split())
    assert "Failed in initialise: no device" in text
    assert "Give the same command again: the stages that finished are reused." in text


@pytest.mark.parametrize("steps", [0, 60])
def test_a_run_without_a_summary_is_shown_as_unfinished(tmp_path: pathlib.Path, steps: int):
    text = Reader(page.write_report(str(fake_run.build(tmp_path, steps=steps)))).text
    assert "unfinished" in text
    assert "No summary yet" in text


def test_an_empty_directory_renders(tmp_path: pathlib.Path):
    text = Reader(page.write_report(str(tmp_path))).text
    for missing in ("config.yaml is missing.", "No stage has finished."):
        assert missing in text


def test_a_dataset_that_is_gone_is_said_to_be(run: pathlib.Path):
    path = next((run.parent / "datasets").glob("demo-*/manifest.json"))
    path.unlink()
    assert f"A manifest is missing: that of the dataset {path.parent}." in page_of(run).text


def test_the_same_run_gives_the_same_page(run: pathlib.Path):
    summary.write_summary(str(run), status="completed")
    first = page.write_report(str(run))
    assert page.render(gather(str(run))) == first


def test_the_page_needs_nothing_from_outside(run: pathlib.Path):
    shown = page_of(run)
    links = [a.get("href") or a.get("src") for _, a in shown.tags if "href" in a or "src" in a]
    assert links
    assert all(link and link.startswith("#") for link in links)
    ids = {attributes.get("id") for _, attributes in shown.tags}
    assert all(link and link[1:] in ids for link in links)
    assert "url(" not in (run / "report.html").read_text()
    policy = next(a["content"] for tag, a in shown.tags if tag == "meta" and "http-equiv" in a)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_page_can_be_used_without_eyes_or_mouse(run: pathlib.Path):
    shown = page_of(run)
    assert ("html", {"lang": "en"}) in shown.tags
    charts = [attributes for tag, attributes in shown.tags if tag == "svg" and attributes.get("class") == "chart"]
    assert len(charts) == 6
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    assert all(attributes.get("scope") == "col" for tag, attributes in shown.tags if tag == "th")
    scrolling = [attributes for _, attributes in shown.tags if attributes.get("class") == "scroll"]
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in scrolling)
    levels = [int(tag[1]) for tag, _ in shown.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_an_evaluation_after_the_final_step_is_not_told(run: pathlib.Path):
    earlier: edges.CheckpointRef = fake_run.checkpoint(run, 120)
    shown = page_of(run, "stopped", stop_reason="enough", checkpoint=earlier)
    assert [row[0][0] for row in shown.tables[fake_run.SPANS][1:3]] == ["60", "120"]
    assert "180" not in [row[0][0] for row in shown.tables[fake_run.SPANS]]


def sections_of(shown: Reader) -> tuple[list[str], list[str]]:
    """Returns the sections of a page and those that its navigation links to."""
    ids = [attributes["id"] or "" for tag, attributes in shown.tags if tag == "section"]
    return ids, [(attributes["href"] or "").removeprefix("#") for tag, attributes in shown.tags if tag == "a"]


def write_preflight(run: pathlib.Path, *, counted: bool) -> None:
    data = record.DataFigures(
        basis="", is_exact=counted, examples=90, rows=70, tokens={"x": 9}, efficiency={"x": 0.5},
        truncated={"t": {"inputs": 0.02}},
    )  # fmt: skip
    model = record.ModelFigures(
        parameters=160, state_bytes=9, step_bytes_low=94_700_000, step_bytes_high=228_000_000, checkpoint_bytes=900
    )
    devices = record.Devices(name="cpu", count=1, memory_bytes=None)
    found = record.Preflight(
        devices=devices, total_steps=240, batch_size=16, first_step=0, model=model, estimated=data,
        exact=data if counted else None,
    )  # fmt: skip
    record.write(str(run), found)


def test_sections_that_hold_nothing_are_neither_shown_nor_linked_to(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=0)
    write_preflight(run, counted=False)
    failed, links = sections_of(page_of(run, "failed", failure=summary.Failure(where="initialise", why="no device")))
    assert failed == links == ["lineage", "stages", "preflight", "data", "settings"]


def test_every_section_of_a_finished_run_is_linked_to(run: pathlib.Path):
    write_preflight(run, counted=True)
    shown, links = sections_of(page_of(run))
    assert shown == links == [
        "curves", "evaluations", "examples", "lineage", "stages", "preflight", "data", "settings",
    ]  # fmt: skip


def test_what_was_found_stands_beside_what_was_expected(run: pathlib.Path):
    write_preflight(run, counted=True)
    shown = page_of(run)
    rows = {row[0][0]: [text for text, _ in row[1:]] for row in shown.tables["Expected and found"][1:]}
    assert rows["parameters"] == ["160", "160"]
    assert rows["truncated inputs of t"] == ["2.0 %", "2.0 %"]
    assert "–" not in [text for cells in rows.values() for text in cells]
    assert "expected to take 94.7 MB to 228 MB of memory beside the state" in shown.text


def test_before_anything_is_found_there_is_no_column_for_it(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=0)
    write_preflight(run, counted=False)
    shown = page_of(run, "failed", failure=summary.Failure(where="vocabulary", why="no text"))
    assert [text for text, _ in shown.tables["Expected"][0]] == ["what", "expected"]


def test_a_long_name_breaks_behind_its_signs(run: pathlib.Path):
    page_of(run)
    assert "mixture-docs_<wbr>span" not in (run / "report.html").read_text()  # short names are never broken
    assert "tokens of encoder_<wbr>input_<wbr>tokens" in (run / "report.html").read_text()


def test_what_was_reused_is_told_with_what_it_took(tmp_path: pathlib.Path):
    shown = page_of(fake_run.build(tmp_path, reused=True))
    assert [row[3][0] for row in shown.tables["Segments"][1:3]] == ["took 22.4 s", "took 23.4 s"]
    assert "are committed · took 1 min 36 s" in " ".join(shown.text.split())
