"""Registry heartbeats that are odd: what goes on to clients is text by name, or nothing."""

import pytest

from statechannel.engine.membership import Membership, decode_member

HEAD = b'{"format":1,"kind":"member","broker":"z","incarnation":"i","seq":1,"since":0,"listeners":'


@pytest.mark.parametrize(
    ("listeners", "urls"),
    [
        (b'{"http":"http://z:80"}', {"http": "http://z:80"}),
        (b'{"http":5,"x":null,"y":["q"],"pulsar":"pulsar://z"}', {"pulsar": "pulsar://z"}),
        (b'{"a":' * 900 + b"1" + b"}" * 900, {}),  # nothing that answers a lookup could write this down
        (b'"text"', {}),
        (b"null", {}),
    ],
)
def test_only_text_by_name_counts_as_listeners(listeners: bytes, urls: dict[str, str]) -> None:
    info = decode_member(HEAD + listeners + b"}")
    member = Membership(6.0).heard(0.0, 0, 0, info)
    assert member.urls == urls


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{",
        b"[]",
        b"{}",
        HEAD.replace(b'"format":1', b'"format":2') + b"{}}",
        HEAD.replace(b'"member"', b'"other"') + b"{}}",
        HEAD.replace(b'"broker":"z"', b'"broker":""') + b"{}}",
        HEAD.replace(b'"incarnation":"i"', b'"incarnation":7') + b"{}}",
        HEAD.replace(b'"seq":1', b'"seq":"1"') + b"{}}",
        HEAD.replace(b'"since":0', b'"since":true') + b"{}}",
    ],
)
def test_what_is_no_heartbeat_is_nobody(value: bytes | None) -> None:
    assert decode_member(HEAD + b"{}}") is not None
    assert decode_member(value) is None
