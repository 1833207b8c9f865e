"""A mailbox: prompts are files, replies are files, written by whoever can think; for agents that have no API."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...facts.dialogue import Message, Prompt, Reply, Usage
from ...facts.errors import Pending, UserError
from ...facts.move import Ask
from .bounded import MOST_CHARACTERS, is_count
from .calling import calls_written, in_words

END = "END OF REPLY"
_REPLY, _CALLS = ".reply.md", ".calls.json"
_POLL_S = 1.0
_MOST_BYTES = 4 * MOST_CHARACTERS  # of a reply: as many as its letters can take
_TAIL_BYTES = 64


class Mailbox:
    """The folder of one or many runs. A prompt `RUN-0003-DIGEST.prompt.md` is answered in
    `RUN-0003-DIGEST.reply.md`, whose last line is `END OF REPLY`: until that line is there the reply counts as
    half written. The name holds run, turn and digest of the prompt, so replies to anything else are never looked at;
    what was taken once is in the journal, and not read again.

    Where the prompt offers tools, calls of them may come instead, as a JSON list in `RUN-0003-DIGEST.calls.json`, with
    the same last line. Their answers lie in `RUN-0003-DIGEST.answers.md` then, which names the file of the next reply.

    A reply may begin with lines between two `---`: `model: NAME`, `input_tokens: N`, `output_tokens: N`,
    `price_usd: X`, `finish: length`."""

    def __init__(
        self, folder: Path, *, run: str, wait: bool = True, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._folder, self._run, self._wait, self._sleep = folder, run, wait, sleep

    def announce(self, asks: Sequence[Ask]) -> None:
        """Every prompt lies there before the first is waited for."""
        for ask in asks:
            self._post(ask)

    def ask(self, ask: Ask) -> Reply:
        reply = self._post(ask)
        while (found := _read(reply) or (_calls(reply) if ask.prompt.tools else None)) is None:
            if not self._wait:
                raise Pending(f"turn {ask.turn} of the model waits for {reply}")
            self._sleep(_POLL_S)
        return found

    def _post(self, ask: Ask) -> Path:
        """Where the reply is awaited; the prompt lies beside it, whole."""
        stem = f"{self._run}-{ask.turn:04d}-{ask.prompt.digest}"
        prompt, reply = self._folder / f"{stem}.prompt.md", self._folder / f"{stem}{_REPLY}"
        if not prompt.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(prompt, _letter(ask.prompt, reply.name))
        if ask.prompt.brings_answers and (asked := self._asked(ask.turn)):
            answers = self._folder / f"{asked}.answers.md"
            if not answers.exists():
                _write(answers, _answers(ask.prompt, reply.name))
        return reply

    def _asked(self, turn: int) -> str:
        """The prompt whose calls are answered with this turn: the last before it that has some."""
        found = sorted(self._folder.glob(f"{self._run}-*{_CALLS}"))
        before = [p.name.removesuffix(_CALLS) for p in found if int(p.name[len(self._run) + 1 :][:4]) < turn]
        return before[-1] if before else ""


def _letter(prompt: Prompt, reply: str) -> str:
    turns = "".join(f"\n\n# {'You' if m.role == 'model' else 'Asked'}\n\n{_told(m)}" for m in prompt.messages)
    calls = _how_to_call(prompt, reply) if prompt.tools else ""
    return (
        f"# How to reply\n\nWrite your reply to `{reply}` in this folder. Its last line must be `{END}`; until then it "
        f"counts as half written.{calls}\n\n# Instructions\n\n{prompt.system}{turns}\n"
    )


def _how_to_call(prompt: Prompt, reply: str) -> str:
    stem = reply.removesuffix(_REPLY)
    return (
        f"\n\nTo call tools first, write `{stem}{_CALLS}` instead: a JSON list such as "
        '`[{"tool": "search", "arguments": {"query": "online softmax"}}]`, and the same last line. What they answer '
        f"comes in `{stem}.answers.md`, with the name of the file for your next reply. The tools:\n\n"
        f"{in_words(prompt.tools)}"
    )


def _told(message: Message) -> str:
    calls = "".join(f"\n\nCalled `{c.tool}` with {c.arguments}" for c in message.calls)
    answers = "".join(f"\n\n`{a.tool}` answers:\n\n```\n{a.text}\n```" for a in message.answers)
    return f"{message.text}{calls}{answers}".strip()


def _answers(prompt: Prompt, reply: str) -> str:
    return (
        f"{_told(prompt.messages[-1])}\n\nWrite your reply to `{reply}`, or further calls to "
        f"`{reply.removesuffix(_REPLY)}{_CALLS}`; the last line is `{END}`.\n"
    )


def _calls(reply: Path) -> Reply | None:
    """None while they are not there, or not whole."""
    found = _read(reply.with_name(reply.name.removesuffix(_REPLY) + _CALLS))
    return replace(found, text="", calls=calls_written(found.text)) if found is not None else None


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


def _read(path: Path) -> Reply | None:
    """None while it is not there, or not whole. Of one that is far longer than a reply may be, the beginning."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                file.seek(-_TAIL_BYTES, os.SEEK_END)
                data = (
                    data[:_MOST_BYTES].decode(errors="ignore").encode()
                    + b"\n"
                    + file.read(_TAIL_BYTES).rstrip().rpartition(b"\n")[2]
                )
        text = data.decode("utf-8")
    except (FileNotFoundError, UnicodeDecodeError):  # a letter of several bytes may be half written, too
        return None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read as a reply ({error.strerror}); remove it and write the file anew"
        ) from None
    body, mark, after = text.rpartition(END)
    if not mark or after.strip() or (body and not body.endswith("\n")):
        return None
    return _parsed(body.replace("\r\n", "\n"), path)


def _parsed(body: str, path: Path) -> Reply:
    head = re.match(r"\s*---\n(.*?\n)?---\n", body, flags=re.DOTALL)
    fields = dict(re.findall(r"^(\w+):[ \t]*(.*?)[ \t]*$", head[1] or "", flags=re.MULTILINE)) if head else {}
    try:
        usage = (
            Usage(input_tokens=int(fields["input_tokens"]), output_tokens=int(fields["output_tokens"]))
            if "input_tokens" in fields and "output_tokens" in fields
            else None
        )
        price = float(fields["price_usd"]) if "price_usd" in fields else None
    except ValueError as error:
        raise UserError(f"{path}: its head holds no number where one belongs ({str(error)[:120]})") from None
    if usage is not None and not (is_count(usage.input_tokens) and is_count(usage.output_tokens)):
        raise UserError(
            f"{path}: its head counts {fields['input_tokens'][:30]} and {fields['output_tokens'][:30]} tokens"
        )
    if price is not None and not (math.isfinite(price) and price >= 0):
        raise UserError(f"{path}: its head says a price of {fields['price_usd'][:30]}; write dollars, as in 0.05")
    return Reply(
        text=(body[head.end() :] if head else body).strip("\n"),
        finish="length" if fields.get("finish") == "length" else "stop", model=fields.get("model", "mailbox"),
        usage=usage, price_usd=price,
    )  # fmt: skip
