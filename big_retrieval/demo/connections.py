"""Connections of the demo: as many as it can hold, and closed when a request takes too long."""

# The libraries of the extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CLIENTS = 512  # connections that are served at a time; others are told to come again
REFUSED = 64  # connections beyond these, which are told so; all others are closed at once
HEADERS, BODY, ANSWER = 10.0, 60.0, 180.0  # seconds until a request's headers, body, answer is over
CHECKED = 1.0  # seconds between two looks at a connection


def max_clients() -> int:
    """`CLIENTS`, or half as many connections as the process may open files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] % 2**31  # -1 is no limit
    return min(CLIENTS, limit // 2)


class TimedConnection(H11Protocol):
    """A connection that is closed if a request or its answer is not over in time.

    uvicorn waits without a limit for a request, and for a client that does not read its answer.
    """

    def connection_made(self, transport: Any) -> None:
        """Starts the clock, or closes a connection that is one too many."""
        super().connection_made(transport)
        self._since, self._timer = self.loop.time(), None
        if len(self.connections) > max_clients() + REFUSED:
            transport.abort()
        else:
            self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Starts the clock of the next request."""
        super().on_response_complete()
        self._since = self.loop.time()

    def _check(self) -> None:
        limit = ANSWER
        if self.cycle is None or self.cycle.response_complete:
            limit = ANSWER if self.transport.get_write_buffer_size() else HEADERS
        elif self.cycle.more_body:
            limit = BODY
        if self.loop.time() - self._since >= limit:
            self.transport.abort()
        else:
            self._timer: asyncio.TimerHandle | None = self.loop.call_later(CHECKED, self._check)
