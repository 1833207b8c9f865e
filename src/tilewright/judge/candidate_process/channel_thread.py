"""The channel thread of a cell: a thread that alone holds the channel to the judge. The main thread runs the code
under test.

From where that code is called, no frame leads to the channel, its nonce or the answers that wait to be sent: the main
thread takes requests and gives answers in a loop without a frame of its own. The walls of Python are thin all the
same: who searches the process's memory byte by byte finds everything.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from ..wire import calls as wire
from ..wire.channel import Channel
from ..wire.parsing import WireError
from .load import CodeRaised, installed_paths
from .session import CandidateSession, Request
from .tripwire import Tripwire

_exit = os._exit
# What shows every object or every thread's frames. Debuggers use it, and libraries that look for leaks; a module that
# computes does not.
_SEARCHES = frozenset({"gc.get_objects", "gc.get_referrers", "sys._current_frames", "sys._current_exceptions"})
_LISTENS = "sys.addaudithook"


def requests(channel: Channel, session: CandidateSession, tripwire: Tripwire | None) -> Iterator[Any]:
    """An iterator that answers one request with every step, until the channel closes."""
    inbox: SimpleQueue[Request | None] = SimpleQueue()
    outbox: SimpleQueue[Any] = SimpleQueue()
    _thread.start_new_thread(_carry, (channel, inbox, outbox, tripwire))
    return map(outbox.put, map(session.answer, iter(inbox.get, None)))


def _carry(
    channel: Channel, inbox: SimpleQueue[Request | None], outbox: SimpleQueue[Any], tripwire: Tripwire | None
) -> None:
    try:
        while True:
            try:
                request = channel.receive()
            except WireError:
                inbox.put(None)
                return
            inbox.put((request, channel.descriptor() if _brings_memory(request) else -1))
            answer = outbox.get()
            if tripwire is not None and not isinstance(
                request, (wire.Clear, wire.TimedCall, wire.TimedCalls)
            ):  # there a clock runs
                answer = _looked_at(tripwire, answer)
            channel.send(answer)
    except BaseException:
        _exit(1)  # nobody could be told


def _brings_memory(request: Any) -> bool:
    """Whether a descriptor rides along with the request."""
    if isinstance(request, wire.TimedCall):
        return request.lay_bytes > 0
    return isinstance(request, wire.Lay) or (isinstance(request, wire.MapArena) and request.device == "cpu")


def _looked_at(tripwire: Tripwire, answer: Any) -> Any:
    """The answer, unless something was replaced."""
    try:
        tripwire.check()
    except CodeRaised as error:
        return error.fault()
    return answer


def refuse_searches(channel: Channel) -> None:
    """From now on the cell ends, with a word to the judge, when code that is not installed here looks for objects or
    frames that were not given to it, or would hear of what the cell does through a hook of its own; installed code gets
    no such hook either, and is not told."""
    installed = installed_paths()
    frame_of = sys._getframe

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _SEARCHES and event != _LISTENS:
            return
        if not frame_of(1).f_code.co_filename.startswith(installed):
            what = "listens to" if event == _LISTENS else "searches"
            try:
                channel.send(CodeRaised("tampering", f"it {what} the process with {event}").fault())
            finally:
                _exit(1)
        if event == _LISTENS:
            raise RuntimeError("no hook is added here")

    sys.addaudithook(hook)
