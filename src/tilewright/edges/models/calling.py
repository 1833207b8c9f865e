"""Tools as providers and mailboxes have them: definitions from the one table, and calls as replies bring them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...facts.dialogue import Message, Prompt, ToolCall
from ...facts.tools import ToolArgument, ToolSpec, spec_of

MOST_CALLS = 16  # of one reply, beyond which none is read
MOST_ARGUMENTS = 400_000  # characters of one call's


def schema(tool: ToolSpec) -> dict[str, Any]:
    """Of its arguments, as JSON schema."""
    return {
        "type": "object", "properties": {a.name: _typed(a) for a in tool.arguments},
        "required": [a.name for a in tool.arguments if a.needed], "additionalProperties": False,
    }  # fmt: skip


def _typed(argument: ToolArgument) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    kind = text if argument.kind == "text" else {"type": "array", "items": text}
    return kind | {"description": argument.about}


def in_words(tools: Sequence[str]) -> str:
    """The tools for whoever reads of them in a letter."""
    lines = []
    for tool in filter(None, map(spec_of, tools)):
        lines.append(f"- `{tool.name}`: {tool.about}")
        lines += [f"  - {a.name}{'' if a.needed else ' (may be left out)'}: {a.about}" for a in tool.arguments]
    return "\n".join(lines)


def parameters(prompt: Prompt) -> Any:
    """pydantic-ai's, for a request with this prompt."""
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(name=tool.name, description=tool.about, parameters_json_schema=schema(tool))
        for tool in filter(None, map(spec_of, prompt.tools))
    ]
    return ModelRequestParameters(function_tools=tools, allow_text_output=True)


def parts_of(message: Message) -> list[Any]:
    """The calls or the answers that a message holds, as pydantic-ai's parts."""
    from pydantic_ai.messages import ToolCallPart, ToolReturnPart

    calls = [ToolCallPart(tool_name=c.tool, args=c.arguments, tool_call_id=c.id) for c in message.calls]
    return [*calls, *(ToolReturnPart(tool_name=a.tool, content=a.text, tool_call_id=a.id) for a in message.answers)]


def calls_in(parts: Sequence[Any]) -> tuple[ToolCall, ...]:
    """Of a provider's response."""
    from pydantic_ai.messages import ToolCallPart

    found = [part for part in parts if isinstance(part, ToolCallPart)][:MOST_CALLS]
    return tuple(
        ToolCall(
            id=str(p.tool_call_id)[:200], tool=str(p.tool_name)[:80], arguments=p.args_as_json_str()[:MOST_ARGUMENTS]
        )
        for p in found
    )


def calls_written(text: str) -> tuple[ToolCall, ...]:
    """Of a letter: a JSON list of {"tool": NAME, "arguments": {...}}, or one such object. What is neither is a call of
    no tool, so that its writer hears of it."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        return (ToolCall(id="1", tool=f"(no JSON: {error})"[:80], arguments="{}"),)
    listed = tree if isinstance(tree, list) else [tree]
    calls = []
    for number, item in enumerate(listed[:MOST_CALLS], start=1):
        one = item if isinstance(item, dict) else {}
        arguments = json.dumps(one.get("arguments") or {})[:MOST_ARGUMENTS]
        calls.append(ToolCall(id=str(number), tool=str(one.get("tool") or "(none named)")[:80], arguments=arguments))
    return tuple(calls)
