"""Recurrent layers: which regions the skeletons take, and their files."""
