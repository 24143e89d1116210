"""The frontier of a sweep: what compares with what, what the table has, and what the plot shows."""

import itertools
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from trial_folders import finished, line, stop, write_trial, written

from raydiff.api import Sweep
from raydiff.formats import plots
from raydiff.report import guarantees, load
from raydiff.report.frontier import text as texts
from raydiff.report.sweep_view import SweepView, open_sweep

NETWORKS = ({"kind": "MLP", "width": 256}, {"kind": "UNet", "channels": 32})
ATTACK = {f"attack/global/best/auc{end}": v for end, v in (("", 0.55), ("_low", 0.51), ("_high", 0.59))}
CLIENT: dict[str, Any] = {"unit": "client", "relation": "replace_one", "declared": []}
SAMPLED: dict[str, Any] = {"relation": "add_remove", "accountant": "rdp", "declared": ["examples"]}
LOCAL = "per example, replace-one, local trust, delta 1e-05"


def write_grid(sweep: Path, *, seeds: tuple[int, ...] = (0,)) -> Path:
    """24 trials per seed: PFDM at 4 budgets, LocalOnly and FedAvg, on 2 schedules and 2 or 4 clients."""
    budgets = {10.0: (9.77, 3.0), 50.0: (48.9, 2.4), 200.0: (195.8, 1.9), None: (math.inf, 1.5)}
    methods: list[tuple[str, dict[str, Any], float, float]] = [
        *(("PFDM", {"epsilon": budget}, *result) for budget, result in budgets.items()),
        ("LocalOnly", {}, 0.0, 1.98),
        ("FedAvg", {}, math.inf, 1.25),
    ]
    settings = itertools.product(seeds, ("linear", "cosine"), (2, 4), methods)
    for number, (seed, schedule, clients, (method, fields, epsilon, distance)) in enumerate(settings):
        worse = distance + 0.1 * (clients == 4) + 0.01 * seed - 0.1 * (schedule == "cosine")
        floor = {"eval/fd_cnn/minor_floor": 0.686 if clients == 2 else 0.641}
        end = finished(epsilon, worse, **ATTACK, **floor)
        where: dict[str, Any] = {"schedule": schedule, "clients": clients, "seed": seed}
        write_trial(sweep, f"{number:016x}", method=method, fields=fields, outcome=end, **where)
    return sweep


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> SweepView:
    return open_sweep(write_grid(tmp_path_factory.mktemp("grid")))


@pytest.fixture(scope="module")
def several_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("seeded"), seeds=(0, 2))


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> SweepView:
    return open_sweep(write_definitions(tmp_path_factory.mktemp("definitions")))


def dp_fedavg(sweep: Path, digest: str, epsilon: float, distance: float, *, trust: str) -> None:
    """Of client-level privacy; under central trust the server sees the updates, outsiders what it publishes."""
    end = finished(epsilon, distance, **CLIENT, trust=trust)
    if trust == "central":
        bare = {"epsilon": math.inf, "unit": None, "relation": None, "trust": "local", "unprotected": ["clipped"]}
        end["server"] = {**end["server"], **bare}
    privacy = {"kind": "ClientPrivacy", "epsilon": round(epsilon), "clip": 1.0, "trust": trust}
    fields = {"averaging": {"kind": "Averaging", "weights": "uniform", "privacy": privacy}}
    write_trial(sweep, digest, method="FedAvg", fields=fields, outcome=end)


def write_definitions(sweep: Path) -> Path:
    """Four privacy definitions, an unprotected trial and one that sends nothing."""
    for i, (epsilon, distance) in enumerate(((0.98, 4.0), (9.5, 2.5))):
        end = finished(epsilon, distance, **SAMPLED)
        write_trial(sweep, f"a{i}", method="DPSGD", fields={"epsilon": round(epsilon)}, outcome=end)
    for i, (epsilon, distance) in enumerate(((10.0, 9.0), (50.0, 6.0))):
        dp_fedavg(sweep, f"b{i}", epsilon, distance, trust="local")
        dp_fedavg(sweep, f"c{i}", epsilon, distance - 4, trust="central")
    unprotected = {"averaging": {"kind": "Averaging", "weights": "uniform", "privacy": None}}
    write_trial(sweep, "d", method="FedAvg", fields=unprotected, outcome=finished(math.inf, 1.2))
    write_trial(sweep, "e", method="LocalOnly", outcome=finished(0.0, 5.5))
    for i, (epsilon, distance) in enumerate(((9.7, 3.0), (48.9, 3.5))):
        write_trial(sweep, f"f{i}", fields={"epsilon": round(epsilon)}, outcome=finished(epsilon, distance))
    return sweep


def table_of(sweep: Path) -> pd.DataFrame:
    return open_sweep(sweep).frontier


def swept(sweep: Path) -> list[str]:
    return [*open_sweep(sweep).fields.values()]


def cells(sweep: SweepView) -> dict[str, list[str]]:
    """The columns by their headers."""
    return texts.cells(sweep).to_dict("list")


# ------------------------------------------------------------------------------------------------- the table


def test_one_row_per_trial_by_method_and_swept_columns(grid: SweepView) -> None:
    table = grid.frontier
    assert len(table) == 24 and [*grid.fields.values()] == ["schedule", "clients", "method.epsilon"]
    keys = list(zip(*(table[c] for c in ("method", "schedule", "clients")), strict=True))
    assert keys == sorted(keys)
    pfdm = table[(table["method"] == "PFDM") & (table["schedule"] == "cosine") & (table["clients"] == 2)]
    assert list(pfdm["method.epsilon"]) == [10.0, 50.0, 200.0, "none"]
    assert table.loc[table["method"] == "FedAvg", "method.epsilon"].isna().all()


def test_short_names_stay_unambiguous(tmp_path: Path) -> None:
    for i in (1, 2):
        fields = {"local": {"kind": "Training", "steps": i}, "server": {"kind": "Training", "steps": 3 * i}}
        write_trial(tmp_path, f"t{i}", fields={**fields, "clip": i}, outcome=finished(9.0, 2.0))
    assert swept(tmp_path) == ["clip", "server.steps", "local.steps"]


def test_fields_of_another_class_are_not_swept_but_an_empty_field_is_a_value(tmp_path: Path) -> None:
    for network in NETWORKS:
        for finetune in (None, {"kind": "Training", "steps": 5}):
            fields = {"model": {"kind": "DDPM", "network": network}, "finetune": finetune}
            digest = f"{network['kind']}{finetune is None}"
            write_trial(tmp_path, digest, method="FedAvg", fields=fields, outcome=finished(math.inf, 2.0))
    table = table_of(tmp_path)
    assert swept(tmp_path) == ["network", "finetune"]
    combinations = sorted(zip(table["network"], table["finetune"], strict=True))
    assert combinations == [("MLP", "Training"), ("MLP", "none"), ("UNet", "Training"), ("UNet", "none")]


def test_seeds_become_one_row_with_mean_deviation_and_largest_epsilon(tmp_path: Path) -> None:
    for seed, (epsilon, distance) in enumerate([(9.0, 1.0), (9.5, 2.0), (9.2, 3.0)]):
        write_trial(tmp_path, f"t{seed}", seed=seed, outcome=finished(epsilon, distance, **ATTACK))
    table = table_of(tmp_path)
    assert len(table) == 1 and swept(tmp_path) == []
    row = table.iloc[0]
    assert (row["n"], row["fd_cnn/minor"], row["fd_cnn/minor_std"], row["epsilon"]) == (3, 2.0, 1.0, 9.5)
    assert math.isnan(row["auc_global_low"])  # the interval of one seed is none of the mean
    assert row["digests"] == "t0 t1 t2" and cells(open_sweep(tmp_path))["fd_cnn/minor"][0] == "2.000±1.000"


def test_stopped_trials_have_a_row_of_their_own_from_the_validation_split(tmp_path: Path) -> None:
    stop(tmp_path, "t0", 5.0, 0.5)
    write_trial(tmp_path, "t1", seed=1, outcome=finished(9.0, 2.0))
    sweep = open_sweep(tmp_path)
    assert cells(sweep)[""] == ["*", "o"] and any(note.startswith("o ") for note in texts.explain(sweep))
    by_outcome = sweep.frontier.set_index("outcome")[["fd_cnn/minor", "epsilon", "pareto"]].to_dict("index")
    assert by_outcome["finished"] == {"fd_cnn/minor": 2.0, "epsilon": 9.0, "pareto": True}
    assert by_outcome["stopped"] == {"fd_cnn/minor": 0.5, "epsilon": 5.0, "pareto": False}


@pytest.mark.parametrize(
    ("points", "optimal"),
    [
        ([(0.0, 3.0), (10.0, 2.0), (math.inf, 1.0)], [False, True, False]),
        ([(10.0, 2.0), (20.0, 2.0)], [True, False]),
        ([(10.0, 2.0), (10.0, 3.0)], [True, False]),
        ([(10.0, 2.0), (10.0, 2.0)], [True, True]),
        ([(0.0, 1.0), (10.0, 2.0), (math.inf, 2.0)], [False, False, False]),
        ([(10.0, 3.0), (20.0, 1.0), (5.0, 2.0)], [False, True, True]),
    ],
)
def test_pareto_is_a_setting_with_a_guarantee_that_none_of_the_same_clients_dominates(
    tmp_path: Path, points: list[tuple[float, float]], optimal: list[bool]
) -> None:
    """Training alone (epsilon 0) dominates, but what its models generate carries no guarantee."""
    for i, point in enumerate(points):
        write_trial(tmp_path, f"t{i}", fields={"clip": i + 2}, outcome=finished(*point))
    write_trial(tmp_path, "other", clients=9, fields={"clip": 9}, outcome=finished(0.5, 0.1))
    table = table_of(tmp_path).set_index("clients")
    assert list(table["pareto"]) == [*optimal, True]
    assert table["auc_ceiling"].isna().tolist() == [*(epsilon == 0 for epsilon, _ in points), False]


def test_pareto_within_each_definition_and_against_what_holds_for_every_one(definitions: SweepView) -> None:
    table = definitions.frontier.set_index("digests")
    best = {"a0", "a1", "c0", "c1", "f0"}  # e sends nothing and beats b0 and b1; f0 beats f1; d has no guarantee
    assert set(table.index[table["pareto"]]) == best
    assert [*definitions.fields.values()] == ["trust", "method.epsilon", "privacy.epsilon"]


def test_distances_of_two_networks_are_refused(tmp_path: Path) -> None:
    write_trial(tmp_path, "a", outcome=finished(5.0, 1.0))
    write_trial(tmp_path, "b", outcome=finished(5.0, 1.0, **{"eval/fd_other/minor": 20.0}))
    with pytest.raises(ValueError, match="fd_cnn, fd_other"):
        table_of(tmp_path)


@pytest.mark.parametrize(
    ("trust", "against"),
    [
        ("central", "outsiders only; the server sees the updates"),
        ("aggregate", "the server, which sees sums of updates alone"),
    ],
)
def test_the_stated_guarantee_holds_against_whom_the_trust_model_says(tmp_path: Path, trust: str, against: str) -> None:
    for digest, epsilon, distance in (("a", 10.0, 2.0), ("b", 50.0, 1.0), ("c", 60.0, 1.5)):
        dp_fedavg(tmp_path, digest, epsilon, distance, trust=trust)
    sweep = open_sweep(tmp_path)
    table = sweep.frontier
    assert list(table["epsilon"]) == [10.0, 50.0, 60.0] and list(table["pareto"]) == [True, True, False]
    assert cells(sweep)["epsilon"][:3] == ["10.00", "50.00", "60.00"]
    definition = f"per client, replace-one, {trust} trust, delta 1e-05, exact accountant"
    assert texts.explain(sweep)[0] == f"epsilon (against {against}): {definition}"


def test_metrics_of_other_packages_are_columns(tmp_path: Path) -> None:
    more = {"eval/vendi/all": 3.25, "eval/vendi/all_low": 3.0, "eval/gap": 0.5, "eval/coverage/all": 0.9}
    write_trial(tmp_path, "a", outcome=finished(9.0, 2.0, **more))
    write_trial(tmp_path, "b", seed=1, outcome=finished(9.0, 2.0, **more))
    sweep = open_sweep(tmp_path)
    table = sweep.frontier
    assert {*cells(sweep)} >= {"vendi/all", "gap"}
    assert list(table["vendi/all"]) == [3.25] and "coverage/all" not in table


@pytest.mark.parametrize("measure", ["kd_cnn/all", "fid/all", "utility_loss", "tv_pairs"])
def test_what_is_measured_in_place_of_that_distance_has_a_column_and_ranks(tmp_path: Path, measure: str) -> None:
    for method, value in (("PFDM", 0.5), ("LocalOnly", 0.25)):
        for seed in range(2):
            end = finished(9.77, 3.0)
            end["final"] = written({"time/seconds": 2.0, f"eval/{measure}": value + 0.1 * seed})
            write_trial(tmp_path, f"{method}{seed}", method=method, seed=seed, outcome=end)
    sweep = open_sweep(tmp_path)
    table = sweep.frontier
    assert list(table[measure]) == pytest.approx([0.3, 0.55]) and list(table["pareto"]) == [True, False]
    assert cells(sweep)[measure] == ["0.300±0.071", "0.550±0.071"]
    assert any(note.startswith(f"{measure}: ") for note in texts.explain(sweep))
    assert sweep.picture.startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------ privacy definitions


def test_each_definition_has_a_column(definitions: SweepView) -> None:
    """a: client, central; b: client, local; c: example, add-remove; d: example, replace-one."""
    shown = cells(definitions)
    lines = [" ".join(row) for row in zip(shown["method"], *(shown[f"epsilon {a}"] for a in "abcd"), strict=True)]
    assert lines[:10] == [
        "DPSGD - - 0.98 -",
        "DPSGD - - 9.50 -",
        "FedAvg 10.00 - - -",
        "FedAvg 50.00 - - -",
        "FedAvg - 10.00 - -",
        "FedAvg - 50.00 - -",
        "FedAvg inf inf inf inf",
        "LocalOnly 0 0 0 0",
        "PFDM - - - 9.70",
        "PFDM - - - 48.90",
    ]
    notes = texts.explain(definitions)
    sampled = "per example, add-remove, local trust, delta 1e-05, rdp accountant; public by declaration: examples"
    assert f"epsilon c (against the server): {sampled}" in notes
    assert {texts.NOTHING_SENT, "epsilon inf: no guarantee (weights sent as they are)"} <= set(notes)


def test_the_csv_has_a_column_for_each_definition(definitions: SweepView) -> None:
    table = guarantees.flatten_guarantees(definitions.frontier).set_index("digests")
    about = ("client, replace-one, central", "client, replace-one, local")
    about += ("example, add-remove, local", "example, replace-one, local")
    columns = [f"epsilon [per {each} trust, delta 1e-05]" for each in about]
    assert [c for c in table if c.startswith("epsilon")] == columns
    assert dict(table[columns[0]].dropna()) == {"c0": 10.0, "c1": 50.0, "d": math.inf, "e": 0.0}
    assert table.loc["f0", columns[:3]].isna().all() and table.loc["f0", columns[3]] == 9.7
    assert table.loc["f0", "guarantee"] == f"{LOCAL}, exact accountant; public by declaration: labels"


def test_accountants_and_public_fields_do_not_make_a_definition_but_a_relation_does(tmp_path: Path) -> None:
    """DP-SGD under replace-one beside PFDM, and under zero-out."""
    for digest, method, (epsilon, distance), about in (
        ("a", "DPSGD", (9.0, 2.5), {"accountant": "pld", "declared": ["examples"], "relation": "replace_one"}),
        ("b", "PFDM", (9.5, 3.0), {}),
        ("c", "DPSGD", (9.9, 2.0), {"accountant": "pld", "declared": ["examples"], "relation": "zero_out"}),
    ):
        fields = {"accountant": "exact", "rounds": 3 if method == "PFDM" else 10}
        fields |= {k: v for k, v in about.items() if k != "declared"}
        write_trial(tmp_path, digest, method=method, fields=fields, outcome=finished(epsilon, distance, **about))
    sweep = open_sweep(tmp_path)
    assert swept(tmp_path) == ["relation"]  # The accountant and the rounds follow from the method.
    shown = cells(sweep)
    assert [shown[f"epsilon {letter}"][:3] for letter in "ab"] == [["9.00", "-", "9.50"], ["-", "9.90", "-"]]
    assert shown[""][:3] == ["*", "*", ""]  # PFDM has more of both than DP-SGD under its relation
    pld, exact = "pld accountant; public by declaration: examples", "exact accountant; public by declaration: labels"
    assert f"epsilon a (against the server): {LOCAL}, {exact} or {pld}" in texts.explain(sweep)


# ------------------------------------------------------------------------------------------------- as text


def test_one_trial_in_full(tmp_path: Path) -> None:
    write_trial(tmp_path, "a", outcome=finished(9.77, 3.0, **ATTACK))
    sweep = open_sweep(tmp_path)
    shown = {"": "*", "method": "PFDM", "epsilon": "9.77"}
    shown |= {"fd_cnn/minor": "3.000", "fd_cnn/major": "2.100", "fd_cnn/all": "1.800", "label accuracy": "0.830"}
    shown |= {"AUC global": "0.550 [0.510 0.590]", "AUC client": "0.848 [0.816 0.880]", "AUC's ceiling": "0.917"}
    shown |= {"sent": "224 kB", "seconds": "6.46"}
    assert {name: column[0] for name, column in cells(sweep).items()} == shown
    assert any(note.endswith("real half against real half: 0.686") for note in texts.explain(sweep))
    first = f"epsilon (against the server): {LOCAL}, exact accountant; public by declaration: labels"
    assert texts.explain(sweep)[0] == first
    lines = texts.text(sweep).splitlines()
    assert lines[1].split() == ["*", "PFDM", "9.77", "3.000", "1.800", "0.550", "0.848"] and len(lines[1]) <= 115


def test_six_columns_name_each_setting_and_the_best_trial(several_seeds: Path) -> None:
    table = texts.brief(open_sweep(several_seeds))
    assert [*table] == ["setting", "target epsilon", "epsilon", "fd_cnn/minor", "std", "AUC global"]
    assert not table[["setting", "target epsilon"]].duplicated().any() and len(table) == 24
    assert "PFDM, schedule cosine, clients 4" in set(table["setting"]) and table["std"].notna().all()
    best = Sweep(several_seeds).best().folder
    assert load.runs(several_seeds).set_index("digest").loc[best.name, "final/eval/fd_cnn/minor"] == pytest.approx(1.15)


def test_failed_killed_and_unfinished_trials_are_listed_below(tmp_path: Path, command) -> None:
    failed = {"outcome": "failed", "reason": "loss is not finite"}
    write_trial(tmp_path / "s", "b", clients=4, outcome=failed, lines=[line(0, 9.5)])
    write_trial(tmp_path / "s", "c", clients=6)
    code, out, _ = command("frontier", tmp_path / "s", "--out", tmp_path / "o")
    assert code == 0 and out.splitlines()[:4] == [
        "failed: PFDM, clients 4: loss is not finite (epsilon 9.50; b)",
        "unfinished: PFDM, clients 6: no reason recorded (epsilon ?; c)",
        "",
        "no plot: no setting has a finite epsilon and a measure of quality",
    ]
    assert [p.name for p in (tmp_path / "o").iterdir()] == ["frontier.csv"]


# ------------------------------------------------------------------------------------------------- as a plot


def draw(sweep: SweepView, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure that a sweep's picture is of, laid out."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    _ = sweep.picture
    figures[0].draw_without_rendering()
    return figures[0]


def labels(figure: Any) -> list[str]:
    return [entry.get_text().replace("\n", " ") for entry in figure.legends[0].get_texts()]


@pytest.fixture(scope="module")
def figure(grid: SweepView) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        return draw(grid, patch)


def test_each_cell_has_a_panel_with_axes_legend_and_floors(figure: Any) -> None:
    assert [axes.get_title() for axes in figure.axes] == ["clients 2", "clients 4"]
    first = figure.axes[0]
    assert first.get_ylabel().endswith("minority classes")
    title = figure.get_supxlabel().replace("\n", " ")
    assert title.startswith("ε per example, replace-one, local trust, δ = 1e-05") and "against the server" in title
    ticks = [label.get_text().split("\n")[0] for label in first.get_xticklabels()]
    assert ticks == ["10", "20", "50", "100", "200", "inf"]
    methods = ("FedAvg, no guarantee", "LocalOnly, nothing sent", "PFDM")
    every = {f"{method}, schedule {schedule}" for method in methods for schedule in ("cosine", "linear")}
    assert every < set(labels(figure)) and "noise floor: real half against real half" in labels(figure)
    floors = [{float(each.get_ydata()[0]) for each in a.lines if each.get_color() == "0.45"} for a in figure.axes]
    assert floors == [{0.686}, {0.641}]


def test_training_alone_and_what_has_no_guarantee_are_lines_and_infinity_of_a_series_is_beyond_its_points(
    figure: Any,
) -> None:
    axes = figure.axes[0]
    low, high = math.log10(9.77), math.log10(195.8)
    series = [list(bar[0].get_xdata()) for bar in axes.containers]
    assert [bar[0].get_color() for bar in axes.containers] == [plots.COLOURS[2]] * 2  # PFDM
    for xs in series:
        assert xs[:3] == pytest.approx([low, math.log10(48.9), high]) and high < xs[3] < axes.get_xlim()[1]
    levels = {round(float(each.get_ydata()[0]), 2) for each in axes.lines if each.get_color() in plots.COLOURS[:2]}
    assert levels == {1.15, 1.25, 1.88, 1.98}  # FedAvg and LocalOnly on two schedules


def test_bars_and_bands_are_95_percent_intervals_over_seeds(
    several_seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = draw(open_sweep(several_seeds), monkeypatch)
    half = 12.706204736432095 * 0.01  # Student's t with 1 degree of freedom; distances 0.02 apart
    bars = figure.axes[0].containers[0].lines[2][0].get_segments()
    assert [(y1 - y0) / 2 for (_, y0), (_, y1) in bars] == pytest.approx([half] * 4)
    bands = [patch.get_height() for patch in figure.axes[0].patches if patch.get_alpha()]
    assert bands == pytest.approx([2 * half] * 4)
    assert "95 % Student intervals" in figure.get_supxlabel()
