"""A bundle: the folder through which a machine that talks to models has another one judge for it; and the queue of a
campaign on a folder that several machines share."""

from .folder import Bundle, name_of
from .queue import NodeQueue, SharedQueue

__all__ = ["Bundle", "NodeQueue", "SharedQueue", "name_of"]
