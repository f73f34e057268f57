"""What the launcher's fork server imports before it forks the ranks: torch and the models, once for all of them.

Importing this also ties the fork server to the launcher; ranks tie themselves to the fork server. So a launcher that is killed takes
all of them along.
"""

from __future__ import annotations

from mtpprof.profilers.engines import worker
from mtpprof.profilers.lifetime import die_with_parent

__all__ = ["worker"]

die_with_parent()
