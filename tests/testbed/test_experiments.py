"""Experiments: files that compose, runs that share a world, trainings, estimates."""

import dataclasses

import pytest

from dynsl_app.compose import compose, conf_dir
from dynsl_app.errors import SettingsError
from dynsl_app.testbed.experiments.dropped import dropped
from dynsl_app.testbed.experiments.estimates import mean_rate, watch
from dynsl_app.testbed.experiments.grid import Grid, names, read_grid
from dynsl_app.testbed.experiments.timing import AT_ONCE, BETWEEN, time_case
from dynsl_app.testbed.experiments.training import train
from dynsl_app.testbed.links import Looped
from dynsl_app.testbed.run import Testbed, simulate_rounds

Testbed.__test__ = False  # it is no test

SMALL = {"model": "cnn", "testbed.batches": "8"}


def grid_of(experiment: str, *algorithms: str) -> Grid:
    return Grid(experiment, algorithms, (0,), ())


def test_every_file_is_an_experiment():
    assert set(names()) == {file.stem for file in (conf_dir() / "experiment").glob("*.yaml")}
    assert {"static", "slowdown", "throughput", "growing", "accuracy", "estimates"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_all_cases_and_algorithms_compose(name):
    grid = read_grid(name)
    for case in grid.cases:
        assert grid.settings(case).runtime == "testbed"
    for algorithm in grid.algorithms:
        settings = grid.settings(grid.cases[0], f"algorithm={algorithm}", f"seed={grid.seeds[-1]}")
        assert (settings.algorithm.name, settings.seed) == (algorithm, grid.seeds[-1])


def test_a_grid_is_all_combinations():
    grid = read_grid("slowdown")
    assert len(grid.cases) == 2 * 2 * 3
    assert grid.cases[0] == {"fleet.links": "wired", "fleet.server": "medium", "dynamics": "slow_orin_nano"}
    assert grid.seeds == (0, 1, 2, 3, 4)


def test_an_unknown_experiment_is_refused():
    with pytest.raises(SettingsError, match=r"experiment=slowdwon: no such option \(there are: accuracy"):
        read_grid("slowdwon")


def test_runs_that_share_a_world_take_what_they_take_alone():
    found = {name: seconds for _, name, seconds in time_case(grid_of("static", "ares", "sfsl", "dynsl"), SMALL, 3)}
    overrides = ["experiment=static", "seed=3", *(f"{name}={value}" for name, value in SMALL.items())]
    for name, rounds in (("ares", 3), ("sfsl", 7), ("dynsl", 3)):
        alone = simulate_rounds(compose([*overrides, f"algorithm={name}", f"rounds={rounds}"]))
        assert found[name] == pytest.approx(sum(alone[-2:]) / 2, rel=1e-12)


def test_uniform_is_every_cut_and_the_last_is_fedavg():
    found = [(name, seconds) for _, name, seconds in time_case(grid_of("static", "fedavg", "uniform"), SMALL, 0)]
    assert [name for name, _ in found] == ["fedavg", *(f"uniform {cut}" for cut in range(1, 6))]
    assert found[-1][1] == found[0][1]


def test_where_something_happens_dynsl_has_variants():
    case = {**SMALL, "dynamics": "links_drop", "fleet.links": "wifi"}
    found = {name: seconds for _, name, seconds in time_case(grid_of("throughput", "dynsl"), case, 0)}
    assert list(found) == ["dynsl", BETWEEN, AT_ONCE]


def test_a_shared_head_keeps_its_cut_and_policy():
    case = {**SMALL, "algorithm.cut": "2"}
    found = {name: s for _, name, s in time_case(grid_of("shared_head", "splitfed_v2", "psl", "uniform"), case, 0)}
    assert list(found) == ["splitfed_v2", "psl", "uniform"]
    assert found["psl"] != found["uniform"]


def test_other_worlds_are_not_shared():
    settings = compose(["experiment=static", "model=cnn"])
    bed = Testbed(settings)
    limited = dataclasses.replace(settings.allocator, max_cut=3)
    for other in (dataclasses.replace(settings, seed=1), dataclasses.replace(settings, allocator=limited)):
        with pytest.raises(ValueError, match="differ in algorithm, allocator and rounds"):
            bed.alike(other)


def test_separate_heads_train_fedavgs_bits_and_a_shared_head_does_not():
    small = ["data.limit=256", "rounds=2"]
    grid = read_grid("accuracy")
    fedavg, dynsl = (train(grid, name, 1, small) for name in ("fedavg", "dynsl"))
    shared = train(read_grid("accuracy_shared"), "dynsl", 1, small)
    assert fedavg.digest == dynsl.digest != shared.digest
    assert fedavg.accuracy == dynsl.accuracy
    assert len(fedavg.accuracy) == len(fedavg.ended_s) == 2
    assert fedavg.ended_s != dynsl.ended_s
    assert (dynsl.heads, shared.heads) == ("separate", "shared")


def test_estimates_are_watched_beside_the_truth():
    class Short(Grid):
        def settings(self, case, *more):
            return super().settings(case, "testbed.batches=12", *more)

    found = watch(Short("estimates", ("dynsl",), (0,), ({},)), 0)
    assert len(found) == 24 * 12
    assert all(one.up_true_Bps > 0 and one.up_recent_Bps > 0 for one in found)
    last = [one for one in found if one.client == 5][-1]
    assert last.up_Bps != last.down_Bps
    assert 0.2 < last.up_Bps / last.up_recent_Bps < 5


def test_what_estimates_nothing_is_refused():
    with pytest.raises(SettingsError, match="algorithm=fedavg estimates nothing"):
        watch(grid_of("estimates", "fedavg"), 0)


def test_a_mean_rate_weighs_by_time():
    path = Looped([1.0, 4.0], [10.0, 2.0])
    assert mean_rate(path, 0.0, 4.0) == (10 + 3 * 2) / 4
    assert mean_rate(path, 0.5, 2.0) == pytest.approx((0.5 * 10 + 1 * 2) / 1.5)
    assert mean_rate(path, 3.0, 3.0) == 2.0


def test_clients_with_fallen_links_have_no_better_end_than_their_best():
    case = {"fleet.links": "wifi", "fleet.server": "weak", "dynamics": "links_drop"}
    found = dropped(read_grid("throughput"), case, 0)
    assert len(found) == 8
    for one in found:
        assert one.best_s <= min(one.stay_s, one.move_s + one.local_s) + 1e-9
        assert one.local_s == pytest.approx(one.start_local_s * one.rest / 50)
    assert any(one.move_bytes > 0 for one in found)
