"""Presets: synthetic rows of tables, how good they are, and what they tell of their training rows."""

from dataclasses import replace

from raydiff.data.datasets import Data
from raydiff.data.partition import Iid, Pooled
from raydiff.evaluation.evaluation_settings import Evaluation, RowAudit
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.overrides import override
from raydiff.experiment.study import SEEDS, Arm, Choices, Study
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.marginals import Marginals
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.d3pm_kernel import Cosine, Sigmoid
from raydiff.models.training import Training

ADULT = Data(name="adult", train=3800, public=0, validation=0, calibration=0, test=15_200)


def _alone(data: Data, *, timesteps: int, epochs: int, evaluation: Evaluation) -> Experiment:
    """One client that has all rows of a table.

    Wei et al.'s training, batch 30, rate 1e-3, weight decay 5e-4 (here decoupled).
    """
    assert data.train is not None
    steps = data.train * epochs // 30
    local = Training(steps=steps, batch=30, learning_rate=1e-3, weight_decay=5e-4, decay="constant")
    return Experiment(
        method=LocalOnly(model=DiscreteDiffusion(steps=timesteps), local=local),
        data=data,
        clients=1,
        partition=Pooled(),
        evaluation=evaluation,
        audit=RowAudit(),
        runtime=Runtime(workers=1),
    )


def _tabular(data: Data) -> Study:
    """The black-box attack over T and the decay rate (Wei et al., Figure 7).

    A fifth of the rows are members, the same under all seeds. Beside it the other schedules, and FedAvg on four
    clients, each with a quarter of the rows.

    100 epochs as in the paper. FedAvg takes as many in ten rounds; a client's members are then its own rows, 6 % of the
    records it is attacked with.
    """
    base = _alone(data, timesteps=20, epochs=100, evaluation=Evaluation())
    steps = base.method.local.steps  # type: ignore[attr-defined]
    shared = {"method": FedAvg, "partition": Iid, "clients": 4, "method.local.steps": steps // 4}
    sigmoid = {"method.model.schedule": Sigmoid}
    beside = (
        *(Arm(changes={**sigmoid, "method.model.schedule.rate": rate}) for rate in (2.5, 5.0)),
        Arm(changes={"method.model.schedule": Cosine}),
        Arm(changes=shared),
    )
    grid = {"method.model.steps": (20, 30), "method.model.schedule.rate": (0.1, 0.3, 0.5, 0.8, 1.0), "seed": SEEDS[:3]}
    return Study(experiment=base, grid=grid, beside=beside)


def tabular_german() -> Study:
    """German Credit: 200 rows are trained on, 800 are not. 78 trials of about 20 seconds on a busy CPU core."""
    return _tabular(Data(name="german", train=200, public=0, validation=0, calibration=0, test=800))


def tabular_adult() -> Study:
    """Adult: 3,800 rows are trained on; those that are not are 15,200 of its test rows. The paper trains on 6,144."""
    return _tabular(ADULT)


def frontier_adult() -> Study:
    """Adult, four clients with 950 rows each: which method at epsilon 1 and 10?

    Counts of pairs of columns (marginals) and DP-SGD on a discrete diffusion in one
    column, each record's epsilon under replace-one; without noise the same counts, FedAvg and local training. 35 trials
    of up to a minute and a half of a core.

    A step of DP-SGD draws 64 of a client's 950 rows. `raydiff tune` chooses its rate and clip, and the others' rates.
    """
    data = replace(ADULT, validation=2000, test=13_200)
    alone = _alone(data, timesteps=20, epochs=100, evaluation=Evaluation(attacks=None))
    base = override(alone, {"clients": 4, "partition": Iid, "audit": None, "method": Marginals})
    local = Training(steps=3000, batch=30, decay="cosine")
    diffusion = {"method.model": DiscreteDiffusion(steps=20), "method.local": local}
    short = replace(local, steps=1000, batch=64)
    dpsgd = {"method": DPSGD, **diffusion, "method.local": short, "method.relation": "replace_one"}
    rates: Choices = {"method.local.learning_rate": (3e-4, 1e-3, 3e-3, 1e-2)}
    beside = (
        Arm(changes={"method.epsilon": 1.0}),
        Arm(changes={"method.epsilon": None}),
        Arm(changes={**dpsgd, "method.epsilon": 10.0}, space={**rates, "method.max_grad_norm": (0.1, 0.3, 1.0, 3.0)}),
        Arm(changes={**dpsgd, "method.epsilon": 1.0}),
        Arm(changes={"method": FedAvg, **diffusion}, space=rates),
        Arm(changes={"method": LocalOnly, **diffusion}, space=rates),
    )
    return Study(experiment=base, grid={"seed": SEEDS}, beside=beside)


def _removal(data: Data, *, epochs: int, fractions: tuple[float, ...], splits: int) -> Study:
    """Leave the most exposed records out, and train on the rest.

    Then train a classifier on what that model makes (Wei et al., Figure 6: T = 10, linear schedule), label by label.
    Beside it the paper's way: a model of the whole table, and a tenth removed in one pass.
    """
    base = _alone(data, timesteps=10, epochs=epochs, evaluation=Evaluation(attacks=None))
    paper = {"method.model.conditional": False, "audit.batch": 1.0}
    beside = tuple(Arm(changes={**paper, "audit.remove": fraction}) for fraction in (0.0, 0.1))
    return Study(experiment=base, grid={"audit.remove": fractions, "data.split_seed": range(splits)}, beside=beside)


def removal_german() -> Study:
    """German Credit, 100 epochs as in the paper, a tenth of the 1,000 rows to test on.

    So few that which they are matters most: ten splits in place of seeds. 100 trials of about 15 seconds.
    """
    data = Data(name="german", train=800, public=0, validation=100, calibration=0, test=100)
    return _removal(data, epochs=100, fractions=(0.0, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5), splits=10)


def removal_adult() -> Study:
    """Adult: 24,574 training rows in three draws, all 15,315 test rows. 20 epochs.

    The paper's 100 take five times as long. 24 trials of about a minute.
    """
    data = Data(name="adult", train=24_574, public=0, validation=0, calibration=0, test=15_315)
    return _removal(data, epochs=20, fractions=(0.0, 0.01, 0.03, 0.1, 0.3, 0.5), splits=3)
