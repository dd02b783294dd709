"""The threads of a listener."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable

from airflow_provider_jmsjca.core.delivery.decisions import Deliver, DeliverEndOfBatch
from airflow_provider_jmsjca.engine.delivering.admission import Intake, Work
from airflow_provider_jmsjca.engine.delivering.delivery import context_name
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings

_log = logging.getLogger(__name__)


class Workers:
    """Threads that take arrivals in and do the work the machine decides on.

    Any thread does any work, except that all handler calls of a batch happen in one (J190, J203): it waits
    for them at a mailbox of its own. Threads are added while all are busy, up to the limit, and end when they
    were idle for long, down to the initial number. They run in the context (`contextvars`) of whoever made
    them, and with the context name: what they write is about deliveries.

    Args:
        settings: Sizes and names.
        admit: Takes one message of an intake in; returns what is to be done then, `None` if it took none.
        perform: Does a piece of work; returns what is to be done next.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        admit: Callable[[Intake], list[Work] | None],
        perform: Callable[[Work], list[Work]],
    ) -> None:
        self._name = settings.name
        self._maximum = settings.threads
        self._initial = min(max(settings.pool_initial, 1), self._maximum)
        idle = settings.pool_idle_timeout
        self._idle_seconds = None if idle is None else idle.total_seconds()
        self._batches = settings.delivery.batch_size > 1
        self._admit = admit
        self._perform = perform
        self._context = contextvars.copy_context()
        self._context.run(context_name.set, settings.context_name)
        self._queue: queue.SimpleQueue[Work | Intake | None] = queue.SimpleQueue()
        self._mailboxes: dict[int, queue.SimpleQueue[Work | None]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._busy = 0
        self._own: set[int] = set()
        self.size = 0

    def start(self) -> None:
        """Start the initial threads; a batch needs a second one at once."""
        for _ in range(max(self._initial, 2 if self._batches else 1)):
            self._add()

    def arrived(self, intake: Intake) -> None:
        """Have a message of the intake taken in."""
        if self._maximum == 1:
            if intake.noticed:  # the one thread will look once more
                return
            intake.noticed = True
        self._queue.put(intake)
        if self.size < self._maximum:
            self._grow()

    def post(self, work: Work) -> None:
        """Have a piece of work done."""
        if self._mailboxes and self._forward(work):
            return
        self._queue.put(work)
        if self.size < self._maximum:
            self._grow()

    def close(self) -> None:
        """End the threads after what they are doing."""
        with self._lock:
            self._closed = True
        self._queue.put(None)
        for mailbox in list(self._mailboxes.values()):
            mailbox.put(None)

    def _grow(self) -> None:
        with self._lock:
            wanted = not self._closed and self._busy + self._queue.qsize() > self.size
        if wanted:
            self._add()

    def _add(self) -> None:
        with self._lock:
            if self.size >= self._maximum:
                return
            self.size += 1
            number = self.size
        context = self._context.copy()
        thread = threading.Thread(
            target=context.run, args=(self._run,), name=f"jms-listener {self._name} {number}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self.size -= 1
                if self.size == 0:
                    raise
            _log.warning("%s: the process has no thread left, the work waits: %s", self._name, error)

    @property
    def are_here(self) -> bool:
        """Whether the caller is one of the threads."""
        return threading.get_ident() in self._own

    def _run(self) -> None:
        own = threading.get_ident()
        self._own.add(own)
        try:
            while self._serve_next():
                pass
        finally:
            with self._lock:
                self._uncount(own)

    def _uncount(self, own: int) -> None:
        if own in self._own:
            self._own.discard(own)
            self.size -= 1

    def _may_end(self) -> bool:
        """Say whether a thread that was idle for long is one too many; if so, it isn't counted any more."""
        with self._lock:
            if self.size <= self._initial:
                return False
            self._uncount(threading.get_ident())
        # Whoever has put something there meanwhile may have seen this thread still counted.
        self._grow()
        return True

    def _serve_next(self) -> bool:
        try:
            item = self._queue.get(timeout=self._idle_seconds)
        except queue.Empty:
            return not self._may_end()
        if item is None:
            self._queue.put(None)  # for the next one
            return False
        if self._maximum == 1:
            self._serve(item)
            return True
        with self._lock:
            self._busy += 1
        # What came since this was taken may have found this thread neither busy nor the queue long enough.
        if self.size < self._maximum:
            self._grow()
        try:
            self._serve(item)
        finally:
            with self._lock:
                self._busy -= 1
        return True

    def _serve(self, item: Work | Intake) -> None:
        if not isinstance(item, Intake):
            self._work_off([item])
            return
        item.noticed = False  # before it looks: what comes after that is noticed anew
        while (todo := self._admit(item)) is not None:
            self._work_off(todo)
            if todo and self._maximum > 1:  # what was not for us left its place to the next
                return

    def _work_off(self, todo: list[Work]) -> None:
        while todo:
            if self._mailboxes:
                todo = [work for work in todo if not self._forward(work)]
                if not todo:
                    return
            for later in todo[1:]:
                self.post(later)
            work = todo[0]
            if self._batches and isinstance(work[1], Deliver):
                todo = self._serve_batch(work, work[1].unit)
            else:
                todo = self._perform(work)

    def _forward(self, work: Work) -> bool:
        """Leave work of a batch to the thread that has it; say whether there is one."""
        mailbox = self._mailboxes.get(getattr(work[1], "unit", 0))
        if mailbox is None:
            return False
        mailbox.put(work)
        return True

    def _serve_batch(self, first: Work, unit: int) -> list[Work]:
        """Do all handler calls of a batch; return what is to be done when they are."""
        mailbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._mailboxes[unit] = mailbox
        work: Work | None = first
        try:
            while work is not None:
                if isinstance(work[1], DeliverEndOfBatch):
                    # What comes after it may be decided before it has returned here, and is anybody's.
                    del self._mailboxes[unit]
                    return self._perform(work)
                for each in self._perform(work):
                    self.post(each)
                if self._closed:
                    break
                work = mailbox.get()
        finally:
            self._mailboxes.pop(unit, None)
        return []
