"""The public API is the stored one: a change of it shows in the diff of public_api.txt."""

import inspect

import statechannel.api
from tests.architecture.public_api import STORED, listing


def test_public_api_equals_the_stored_listing():
    assert listing() == STORED.read_text(encoding="utf-8"), "if it is meant: `make docs`, and read the diff"


def test_every_public_class_and_method_is_documented():
    bare = []
    for name in statechannel.api.__all__:
        thing = getattr(statechannel.api, name)
        if not inspect.isclass(thing):
            continue
        bare += [] if thing.__doc__ else [name]
        for member, value in vars(thing).items():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if not member.startswith("_") and inspect.isfunction(function) and not function.__doc__:
                bare.append(f"{name}.{member}")
    assert bare == []
