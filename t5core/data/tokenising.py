"""A task tokenised in shares, each by itself: by a pod of its own on a cluster.

How many there are decides who makes which part of the plan, and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence

from t5core import errors, progress, records, sharing
from t5core.config.edges import Survey, TokenisedShare
from t5core.data import manifest, outline, pool, sources, worker
from t5core.data.outline import Outline
from t5core.data.pool import Caller
from t5core.data.shards import Part, Plan, ShardFolder
from t5core.data.work import Work, task_named

# A share has about as much text, and there are so many at most unless more are asked for.
SHARE_BYTES = 1 << 30
_MOST_SHARES = 256
# Bytes that a process needs, about: one of ours, and one with TensorFlow in it.
_MEMORY, _MEMORY_WITH_SEQIO = 300 << 20, 2 << 30
_SHARE_RECORD = ".share.json"
# A process takes a second to start, and this many parts take longer.
_PARTS_FOR_A_PROCESS = 4


def shares_of(plan: Plan, *, wanted: int | None) -> int:
    """Returns in how many shares a task is tokenised: `wanted`, or as many as its text needs; each has a part."""
    sensible = min(_MOST_SHARES, -(-plan.size // SHARE_BYTES))
    return max(1, min(len(plan.parts), wanted or sensible))


class Tokenising:
    """The work on one dataset, from the look at its task to the last of its shards.

    Attributes:
      uri: where the dataset belongs.
      folder: where its shards lie until then.
    """

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._settings = survey.request.run.config.data
        self._task = task_named(self._settings, survey.request.task)
        self._root = survey.request.run.config.run.root
        self._key = manifest.key_of(self._task.name, survey.parts)
        self.uri = manifest.dataset_uri(self._root, self._task.name, survey.parts)
        self.folder = ShardFolder(self.uri)

    @functools.cached_property
    def outline(self) -> Outline:
        """What a look at the task found, made once; it is looked at again where that is gone or damaged.

        Raises:
          ConfigError: the task cannot work as configured.
          DataError: its text cannot be used.
        """

        def look() -> Outline:
            scan = sources.scanned(self._task, self._settings) if self._task.has_documents else None
            work = Work(request=self._survey.request, scan=scan)
            found = Outline(scan=scan, plan=self._here.call(f"{self._maker}:plan", work))
            outline.write(self.folder.uri, found)
            return found

        find = functools.partial(outline.read, self.folder.uri)
        return sharing.made_once(self._root, f"{self._key}.outline", find=find, make=look, note=False)

    @functools.cached_property
    def work(self) -> Work:
        """What the processes that tokenise are told."""
        return Work(request=self._survey.request, scan=self.outline.scan)

    @functools.cached_property
    def shares(self) -> int:
        """In how many the task is tokenised."""
        return self._survey.shares or shares_of(self.outline.plan, wanted=self._settings.shares)

    def examples_in_source(self) -> int:
        """Returns how many examples there are to train on before any is left out."""
        if self.outline.scan is not None:
            return self.outline.scan.documents[sources.TRAIN]
        return self._here.call(f"{self._maker}:examples_in_source", self.work)

    def complete(self) -> None:
        """Makes every part that is missing, share by share."""
        for index in range(self.shares):
            if self._missing(index):
                self.tokenise(index)

    def tokenise(self, index: int) -> TokenisedShare:
        """Returns what became of a share, now that its parts are there, or even the dataset.

        Runs that need it at once make it once, as long as they ask for as many shares.
        """

        def find() -> TokenisedShare | None:
            dataset = manifest.reuse_or_reason(self._root, self._task.name, self._survey.parts).found
            if dataset is None and self._missing(index):
                return None
            return TokenisedShare(task=self._task.name, index=index, made=0, seconds=0.0)

        key = f"{self._key}.share-{index + 1}-of-{self.shares}"
        return sharing.made_once(self._root, key, find=find, make=lambda: self._make(index), note=False)

    def seconds(self) -> float:
        """Returns what the shares took that were made so far, all together."""
        spent = 0.0
        for name in self.folder.names(ending=_SHARE_RECORD):
            with contextlib.suppress(errors.IntegrityError):  # nothing but this sum needs it
                share = records.read(f"{self.folder.uri}/{name}", TokenisedShare)
                spent += share.seconds if share is not None else 0.0
        return spent

    def _make(self, index: int) -> TokenisedShare:
        began, parts, missing = time.monotonic(), self._parts(index), self._missing(index)
        label = f"tokenise {self._task.name}" + (f", share {index + 1} of {self.shares}" if self.shares > 1 else "")
        if len(missing) < len(parts):
            kept = len(parts) - len(missing)
            progress.say(f"  {label}: {kept} of {len(parts)} parts are there from an earlier attempt")
        with (
            self.folder.removed_after_a_failure(),
            progress.stage(label, total=None, unit="examples") as bar,
            self._callers(most=len(missing)) as callers,
        ):
            calls = [(self.work, part, self.folder.uri) for part in missing]
            for _ in pool.results(f"{self._maker}:make", calls, callers=callers, on_progress=bar.advance):
                pass
        seconds = time.monotonic() - began
        share = TokenisedShare(task=self._task.name, index=index, made=len(missing), seconds=seconds)
        records.write(f"{self.folder.uri}/{index + 1}-of-{self.shares}{_SHARE_RECORD}", share)
        return share

    def _parts(self, index: int) -> tuple[Part, ...]:
        return self.outline.plan.parts[index :: self.shares]

    def _missing(self, index: int) -> list[Part]:
        there = self.folder.names()
        return [part for part in self._parts(index) if not there.issuperset(part.files)]

    @property
    def _maker(self) -> str:
        return f"t5core.data.{'text_shards' if self._task.has_documents else 'seqio_materialise'}"

    @property
    def _here(self) -> Caller:
        return pool.Here() if self._task.has_documents else worker.start()

    @contextlib.contextmanager
    def _callers(self, *, most: int) -> Iterator[Sequence[Caller]]:
        """Gives who makes the parts: one where that is enough, processes otherwise, which end with the block."""
        has_documents, here = self._task.has_documents, self._here
        memory = _MEMORY if has_documents else _MEMORY_WITH_SEQIO
        sensible = min(most // _PARTS_FOR_A_PROCESS, pool.sensible_processes(memory_each=memory))
        count = min(most, self._settings.workers or sensible)
        if count <= 1:
            yield [here]
            return
        with contextlib.ExitStack() as started:
            processes = []
            for _ in range(count if has_documents else count - 1):
                processes.append(worker.Worker(preload="t5core.data.text_shards" if has_documents else "seqio"))
                started.callback(processes[-1].close)
            yield processes if has_documents else [here, *processes]
