"""SCAFFOLD whose control variates forget the momentum: what may be behind a published SCAFFOLD that hardly learns.

    PYTHONPATH=docs/data/referees python jobs/sweep.py analysis.referee_presets:niid_bench --method by_rates:ByRates

c_i+ divides x - y by the sum of the rates alone, though with a momentum of 0.9 a client goes up to ten times as far
along a gradient; the correction c - c_i is in the gradient, and so goes as far. It is up to ten times what the drift
was.
"""

from dataclasses import dataclass, replace

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import SCRATCH, LocalResult, Round
from raydiff.methods.scaffold import CONTROL, UNPROTECTED_TEXT, Scaffold, _distance_along
from raydiff.privacy.release import disclose
from raydiff.tree import Params


@dataclass(frozen=True, kw_only=True)
class ByRates(Scaffold):
    """`Scaffold`, but for the way by which x - y is divided."""

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """As there, with mean gradients as large as if there were no momentum."""
        found = super().local_update(server, state, data, rnd)
        c, steps = tree.under(CONTROL, server), self.steps(rnd.number, len(data))
        training = self.local.of(len(data))
        longer = _distance_along(training, steps) / _distance_along(replace(training, momentum=0.0), steps)
        sent = found.release.value
        change = tree.sub(tree.scale(tree.add(tree.under(CONTROL, sent), c), longer), c)
        before = tree.under(f"{SCRATCH}/{CONTROL}", state) or tree.scale(c, 0.0)
        release = disclose({**sent, **tree.prefixed(CONTROL, change)}, UNPROTECTED_TEXT)
        return LocalResult(tree.prefixed(f"{SCRATCH}/{CONTROL}", tree.add(before, change)), release, found.metrics)
