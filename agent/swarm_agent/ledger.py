"""The coordinator's ledger of data: who holds which shard, and how often each has been gone through.

A pure data structure: no input or output, imports nothing of ours.
"""

from collections.abc import Sequence


class ShardLedger:
    """Gives out `total` shards so that each is passed over equally often, whoever comes and goes.

    A worker holds one shard at a time. It gives it back finished (and gets another one) or, by leaving or
    dying, unfinished: then the shard is the first to be given out again.
    """

    def __init__(self, total: int, passes: Sequence[int] | None = None) -> None:
        """Start a ledger.

        Args:
            total: Number of shards, at least 1.
            passes: How often each has been gone through, from a checkpoint.

        Raises:
            ValueError: `passes` is not a count for each shard.
        """
        if passes is not None and (len(passes) != total or any(count < 0 for count in passes)):
            raise ValueError(f"a ledger of {total} shards needs {total} counts of 0 or more, not {list(passes)}")
        self.total = total
        self.passes = list(passes) if passes is not None else [0] * total
        self._holders: dict[str, int] = {}
        self._returned: list[int] = []  # begun and not finished

    def holder_of(self, shard: int) -> tuple[str, ...]:
        """Name the workers that hold a shard; more than one only when there are more workers than shards."""
        return tuple(worker for worker, held in self._holders.items() if held == shard)

    def held_by(self, worker: str) -> int | None:
        """Return the shard that a worker holds."""
        return self._holders.get(worker)

    def take(self, worker: str) -> int:
        """Give a shard to a worker, which until now held none: one that was left behind, else the least passed."""
        held = list(self._holders.values())
        shard = min(
            range(self.total),
            key=lambda s: (held.count(s), s not in self._returned, self.passes[s], s),
        )
        if shard in self._returned:
            self._returned.remove(shard)
        self._holders[worker] = shard
        return shard

    def finish(self, worker: str) -> None:
        """Count a pass over the shard that a worker held, and take it back."""
        shard = self._holders.pop(worker, None)
        if shard is not None:
            self.passes[shard] += 1

    def release(self, worker: str) -> None:
        """Take an unfinished shard back from a worker that has left."""
        shard = self._holders.pop(worker, None)
        if shard is not None and not self.holder_of(shard):
            self._returned.append(shard)
