"""Small prompts to put to models."""

from __future__ import annotations

from tilewright.facts.dialogue import Message, Prompt
from tilewright.facts.move import Ask


def ask(turn: int = 0, text: str = "Faster, please.") -> Ask:
    prompt = Prompt(system="Be brief.", messages=(Message(role="user", text=text),))
    return Ask(prompt=prompt, model="m", turn=turn, why="test")
