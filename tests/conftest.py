"""What all tests share: caches of their own, never those of whoever runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# No test asserts times: a busy machine must not fail one.
settings.register_profile("mtpprof", deadline=None)
settings.load_profile("mtpprof")


@pytest.fixture(scope="session", autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Parsed tables and compiled libraries go to a folder that ends with the tests; child processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
