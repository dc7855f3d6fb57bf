"""Owns `strata chat`: a terminal, or a pipe, in front of a running server."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TextIO

from appliance.client import Client, Message, Piece
from appliance.errors import ApplianceError, NotReadyError

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
POLL_S = 1.0
WAIT_S = 3600.0
HELP = "/exit leaves, /new forgets the conversation, Ctrl-C stops an answer"


@dataclass(slots=True)
class Chat:
    """One conversation.

    Attributes:
        client: the server.
        model: id to ask for.
        thinking: whether the model shall think first; None leaves it to the model.
        out: where answers go; colour only if it is a terminal.
    """

    client: Client
    model: str
    thinking: bool | None = None
    out: TextIO = field(default_factory=lambda: sys.stdout)
    messages: list[Message] = field(default_factory=list)

    def answer(self, text: str) -> None:
        """Asks and prints the answer as it comes; Ctrl-C keeps what was said so far."""
        self.messages.append(Message("user", text))
        said: list[str] = []
        colour = self.out.isatty()
        kind = ""
        try:
            with contextlib.closing(self._pieces()) as pieces:
                for piece in pieces:
                    if piece.kind != kind:
                        self._change(kind, piece.kind, colour=colour)
                        kind = piece.kind
                    if piece.kind == "content":
                        said.append(piece.text)
                    self.out.write(piece.text)
                    self.out.flush()
        except KeyboardInterrupt:
            self.out.write(" [stopped]")
        except ApplianceError:
            self.messages.pop()  # so that the next question does not follow one without an answer
            raise
        finally:
            self.out.write((PLAIN if colour and kind == "reasoning" else "") + "\n")
            self.out.flush()
        self.messages.append(Message("assistant", "".join(said)))

    def _pieces(self) -> Generator[Piece]:
        return self.client.chat(self.messages, model=self.model, thinking=self.thinking)

    def _change(self, old: str, new: str, *, colour: bool) -> None:
        if old:
            self.out.write((PLAIN if colour and old == "reasoning" else "") + "\n\n")
        if new == "reasoning" and colour:
            self.out.write(DIM)


def wait_until_ready(client: Client, *, tell: TextIO, sleep: Callable[[float], None] = time.sleep) -> None:
    """Waits while the server loads, saying each new stage once.

    Raises:
        AddressError: nothing answers.
        NotReadyError: it takes more than an hour.
    """
    shown = ""
    for _ in range(int(WAIT_S / POLL_S)):
        ready, stage = client.readiness()
        if ready:
            return
        if stage != shown:
            tell.write(f"not ready: {stage}\n")
            tell.flush()
            shown = stage
        sleep(POLL_S)
    raise NotReadyError(f"the server did not become ready: {shown}")


def run(chat: Chat, *, source: TextIO, first: str | None) -> None:
    """Talks until the end of the input.

    A message on the command line, or all of a pipe, is one question; a terminal is a conversation.
    """
    if first is not None:
        chat.answer(first)
        return
    if not source.isatty():
        text = source.read().strip()
        if text:
            chat.answer(text)
        return
    chat.out.write(f"{chat.model}: {HELP}\n")
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            chat.out.write("\n")
            return
        if text == "/exit":
            return
        if text == "/new":
            chat.messages.clear()
        elif text:
            try:
                chat.answer(text)
            except ApplianceError as error:
                chat.out.write(f"{error}\n")
