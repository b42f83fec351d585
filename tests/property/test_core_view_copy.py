"""A view that is copied in small steps, between any records, is the view at the offset that the copy names."""

from random import Random

import pytest

from statechannel.protocol.digest import digest, digest_of
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.protocol.view_copy import ROUNDS_MAX, ViewChangedError, ViewCopier, ViewCopy
from tests.twin import judge, loggen
from tests.unit.core.against_twin import KNOBS, by_partition, read, seeds

CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in ("honest", "wild") for seed in seeds(6)]


def lines_of(copy: ViewCopy) -> list[bytes]:
    return sorted(line for piece in copy.pieces for line in piece)


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_a_copy_is_the_view_at_one_offset(knobs: str, seed: int) -> None:
    log, random = loggen.generate(seed, KNOBS[knobs]), Random(seed)
    partitions = len(log.end_offsets)
    for partition, lines in by_partition(log).items():
        view, copier, copies = View(partition, partitions), None, 0
        twin = judge.Judge(partition, partitions)
        for line in lines:
            if read(view, line).verdict is Verdict.UNSUPPORTED_FORMAT:
                break
            twin.read(line)
            while random.random() < 0.6:
                copier = copier or ViewCopier(view, keys_a_step=random.choice((1, 2, 5, 1000)))
                copy = copier.step()
                if copy is not None:
                    assert copy.applied == view.applied
                    assert digest_of(lines_of(copy)) == digest([view]) == judge.digest(twin.states())
                    copier, copies = None, copies + 1
        assert copies or len(lines) < 20


class Changing(View):
    """Every key was changed by the record just read."""

    def change(self) -> None:
        self.applied += 1
        for key in self.keys.values():
            key.offset = self.applied


def test_a_view_that_never_stands_still_is_given_up() -> None:
    log = loggen.generate(1, KNOBS["honest"])
    view = Changing(0, len(log.end_offsets))
    for line in by_partition(log)[0]:
        read(view, line)
    copier = ViewCopier(view, keys_a_step=1)

    def copy_on() -> None:
        while copier.step() is None:
            view.change()

    with pytest.raises(ViewChangedError, match=f"{ROUNDS_MAX + 1} times while it was copied"):
        copy_on()
