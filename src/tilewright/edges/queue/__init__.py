"""The queue of the served judge: one table, in an SQLite file or in PostgreSQL."""

from .database import QueueDown
from .tickets import MOST_ATTEMPTS, QueueFull, TicketQueue

__all__ = ["MOST_ATTEMPTS", "QueueDown", "QueueFull", "TicketQueue"]
