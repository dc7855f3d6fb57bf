"""One request as its client sees it: an asyncio queue of events that always ends with Finished; torch-free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from appliance.scheduler.request import Event, Finished
from appliance.scheduler.session import Session


class Stream:
    """Implements RequestStream. Used on the event loop only."""

    def __init__(self, session: Session, *, wake: Callable[[], None]) -> None:
        """A stream without events; `wake` rouses an idle engine after a cancel."""
        self._session = session
        self._wake = wake
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._closed = False
        self._exhausted = False

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._session.request.id

    def push(self, event: Event) -> None:
        """Appends an event; after Finished nothing is taken any more, so a late token reaches nobody."""
        assert event.request_id == self.request_id, "an event was delivered to another request's stream"
        if not self._closed:
            self._closed = isinstance(event, Finished)
            self._events.put_nowait(event)

    def cancel(self) -> None:
        """Ends the request at the next window and frees its slot; safe to repeat and after the end."""
        if not self._closed:
            self._session.cancelled = True
            self._wake()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yields events; stops after Finished."""
        while not self._exhausted:
            event = await self._events.get()
            self._exhausted = isinstance(event, Finished)
            yield event
