"""What clients are told of a ticket, as JSON."""

from __future__ import annotations

import json
from typing import Any

from ...facts.ticket import Ticket, TicketFault, TicketVerdict
from ...report import RewardRule, reward


def ticket_object(ticket: Ticket, rule: RewardRule) -> dict[str, Any]:
    """The ticket: its state, when it ended the verdict with a reward, or the fault. Nothing that ended without a
    verdict has a reward: it is null."""
    told: dict[str, Any] = {
        "ticket": ticket.id, "state": ticket.state, "priority": ticket.priority, "attempts": ticket.attempts,
        "submitted_s": ticket.submitted_s, "taken_s": ticket.taken_s or None, "ended_s": ticket.ended_s or None,
    }  # fmt: skip
    match ticket.outcome:
        case TicketVerdict() as judged:
            value = reward(judged, rule)
            told |= {
                "accepted": judged.accepted, **json.loads(judged.shown),
                "reward": {"value": value, "formula": rule.formula, "against": rule.against, "cap": rule.cap},
            }  # fmt: skip
        case TicketFault(whose=whose, text=text):
            told |= {"fault": {"whose": whose, "text": text}}
    return told
