"""A bundle: the folder through which a machine that talks to models has another one judge for it."""

from .folder import Bundle, name_of

__all__ = ["Bundle", "name_of"]
