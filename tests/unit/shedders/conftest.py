import pytest

from tests.support.strategies import install


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the strategies of this working tree are installed."""
    install(monkeypatch)
