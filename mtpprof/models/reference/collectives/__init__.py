"""Collectives of the reference engine: the seam that names them, and what carries them out."""
