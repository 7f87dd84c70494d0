"""Work done ahead in the background, in order, a bounded number of items at a time."""

from __future__ import annotations

import collections
import concurrent.futures
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Prefetcher(Iterator[tuple[Item, Result]], Generic[Item, Result]):
    """Iterates over (item, make(item)) while one thread makes up to `depth` results ahead; a context manager.

    What `make` raises is raised here when its item is due, and ends the iteration. `close`, or leaving the `with`
    block, waits for the item under way and drops the rest.
    """

    def __init__(self, make: Callable[[Item], Result], items: Iterable[Item], *, depth: int = 2) -> None:
        assert depth >= 1, "nothing would ever be ready"
        self._make = make
        self._items = iter(items)
        self._pool = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._ahead: collections.deque[tuple[Item, concurrent.futures.Future[Result]]] = collections.deque()
        for _ in range(depth):
            self._start_one()

    def _start_one(self) -> None:
        for item in self._items:
            self._ahead.append((item, self._pool.submit(self._make, item)))
            return

    def __next__(self) -> tuple[Item, Result]:
        if not self._ahead:
            self.close()
            raise StopIteration
        item, future = self._ahead.popleft()
        try:
            result = future.result()
        except BaseException:
            self.close()
            raise
        self._start_one()
        return item, result

    def close(self) -> None:
        """Drops what is ahead and waits until the thread is gone."""
        self._items = iter(())
        self._ahead.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Prefetcher[Item, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()
