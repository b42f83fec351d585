"""Every setting is on design/reference/settings.md, and no place of a machine is."""

from statechannel.settings.names import known
from statechannel.settings.tree import groups
from tests.docs.settings_pages import settings_page


def test_every_setting_is_on_it_once() -> None:
    page = "\n".join(settings_page())
    for names in known(groups()).values():
        for name in names:
            assert f"| `{name}` |" in page


def test_no_address_or_path_of_a_machine_is_on_it() -> None:
    page = "\n".join(settings_page())
    assert "/home" not in page
    assert "/root" not in page
