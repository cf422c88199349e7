"""Sends the messages of webhooks: a thread beside the relay, or in the worker of an embedded service.

Receivers are slow and many, so sends run beside each other in an event loop of the thread's own, a few per endpoint.
The outbox's rows say what is due; nothing that is held here is lost with the process.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter

from jobs.db import Database
from jobs.dispatch import DueMessage, Patience, claim_due, prune, record_result
from jobs.errors import Unavailable
from worker.post import deliver
from worker.settings import WorkerSettings

log = logging.getLogger(__name__)

_AT_ONCE = 32
_PER_WEBHOOK = 4
_RECORD_SECONDS = 30.0
"""What a claim allows beyond the receiver's time, to write down how it went."""
_PAUSE_SECONDS = 5.0
_LAST_SECONDS = 3.0
"""For what is in flight at the end; what takes longer is sent again by another sender once its claim runs out."""
_PRUNE_EVERY_SECONDS = 600.0


class Courier:
    """One sender; any number may run on one database."""

    def __init__(self, db: Database, settings: WorkerSettings) -> None:
        self._db = db
        self._settings = settings
        self._patience = Patience(
            first_retry_seconds=settings.webhook_first_retry_seconds,
            retry_seconds=settings.webhook_retry_hours * 3600,
            disable_seconds=settings.webhook_disable_hours * 3600,
        )
        self._egress = settings.webhook_egress
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._loop()), name="courier", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """End, after a moment for what is in flight."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    async def _loop(self) -> None:
        pruned_at = -_PRUNE_EVERY_SECONDS
        loop = asyncio.get_running_loop()
        while not self._stopped.is_set():
            pause = self._settings.webhook_poll_seconds
            try:
                await self._send_due()
                if loop.time() - pruned_at >= _PRUNE_EVERY_SECONDS:
                    pruned_at = loop.time()
                    await asyncio.to_thread(prune, self._db, keep_seconds=self._settings.webhook_keep_days * 86_400)
            except Unavailable as error:
                log.warning("webhooks wait: %s", error)
                pause = _PAUSE_SECONDS
            except Exception:
                log.exception("the courier failed")
                pause = _PAUSE_SECONDS
            await self._rest(pause)
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=_LAST_SECONDS)
        for task in self._under_way:
            task.cancel()

    async def _send_due(self) -> None:
        room = _AT_ONCE - len(self._under_way)
        if room == 0:
            return
        due = await asyncio.to_thread(
            claim_due,
            self._db,
            limit=room,
            busy=Counter(self._under_way.values()),
            each=_PER_WEBHOOK,
            hold_seconds=self._settings.webhook_timeout_seconds + _RECORD_SECONDS,
            pepper=self._settings.key_pepper,
        )
        for message in due:
            task = asyncio.create_task(self._send(message))
            self._under_way[task] = message.webhook_id

    async def _rest(self, seconds: float) -> None:
        """Wait for the next look; where sends have ended there is room, and maybe more to do, at once."""
        until = asyncio.get_running_loop().time() + seconds
        while not self._stopped.is_set() and (left := until - asyncio.get_running_loop().time()) > 0:
            if self._under_way:
                await asyncio.wait(set(self._under_way), timeout=min(left, 0.2), return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(min(left, 0.2))
            ended = [task for task in self._under_way if task.done()]
            for task in ended:
                del self._under_way[task]
                if error := task.exception():
                    log.error("a message could not be sent", exc_info=error)
            if ended:
                return

    async def _send(self, message: DueMessage) -> None:
        result = await deliver(message, self._egress, self._settings.webhook_timeout_seconds)
        # Not the URL: receivers like to keep a secret in its path.
        log.info(
            "webhook %s: message %s, attempt %d: %s",
            message.webhook_id,
            message.id,
            message.attempt,
            result.status or result.error,
        )
        jitter = random.uniform(0.8, 1.2)  # noqa: S311
        try:
            await asyncio.to_thread(record_result, self._db, message, result, self._patience, jitter=jitter)
        except Unavailable as error:
            log.warning("webhook %s: its claim will run out, and the message come again: %s", message.webhook_id, error)
