"""Whether this process reads its own records back: the one proof that it can both write and read a channel partition."""

from __future__ import annotations

OUTSTANDING_MAX = 64


class Echo:
    """Own records of each channel partition that were written and not read back.

    A record that was read back answers for all that were written before it: what a broker of Kafka refused never comes.
    """

    def __init__(self, partitions: int) -> None:
        self._sent_at_s: list[dict[str, float]] = [{} for _ in range(partitions)]

    def written(self, partition: int, record_id: str, now_s: float) -> None:
        """A record was handed to the writer. Of too many every second is dropped: the oldest tells the age, newer ones end it."""
        sent = self._sent_at_s[partition]
        if len(sent) >= OUTSTANDING_MAX:
            for dropped in list(sent)[1::2]:
                del sent[dropped]
        sent.setdefault(record_id, now_s)

    def read_back(self, partition: int, record_id: str) -> float | None:
        """An own record was read; when it was written, None where that is not known any more."""
        sent = self._sent_at_s[partition]
        sent_at_s = sent.get(record_id)
        if sent_at_s is not None:
            while sent:
                first = next(iter(sent))
                del sent[first]
                if first == record_id:
                    break
        return sent_at_s

    def restarted(self, partition: int) -> None:
        """The partition was joined from its beginning: what lies in it was not read one by one."""
        self._sent_at_s[partition].clear()

    def age_s(self, partition: int, now_s: float) -> float:
        """Age of the oldest own record that should have been read back; 0 where none is outstanding."""
        oldest_s = next(iter(self._sent_at_s[partition].values()), now_s)
        return now_s - oldest_s

    def oldest_s(self, now_s: float) -> float:
        """The largest age of all partitions."""
        return max((self.age_s(partition, now_s) for partition in range(len(self._sent_at_s))), default=0.0)
