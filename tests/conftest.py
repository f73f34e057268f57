"""What all tests share: caches and signals of their own, never those of whoever runs them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.golden import Golden

# No test asserts times: a busy machine must not fail one.
settings.register_profile("mtpprof", deadline=None)
settings.load_profile("mtpprof")

# A shell without job control starts what runs in the background with Ctrl-C ignored, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Parsed tables and compiled libraries go to a folder that ends with the tests; child processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """The switch that writes golden files anew."""
    parser.addoption("--golden-update", action="store_true", help="write tests/data/golden anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The golden files."""
    return Golden(update=bool(request.config.getoption("--golden-update")))
