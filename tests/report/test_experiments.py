"""Tables and figures of experiments, from results whose numbers are known."""

import math

import pytest

from dynsl_app.errors import SettingsError
from dynsl_app.report import accuracy, blocks, dropped, estimates, figures, goals, statistics, timings
from dynsl_app.results import BlockFacts, BlockMeasured, Case, Dropped, Estimate, Timing, Training

CASE = Case("resnet18", "wired", "weak")


def timing(algorithm, *seconds, case=CASE):
    return Timing(case, algorithm, seconds)


def cases(**seconds):
    return timings.by_case(timing(name, *each) for name, each in seconds.items())


def test_the_interval_is_students():
    found = statistics.mean([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.half == pytest.approx(4.302653 / math.sqrt(3))  # t of 2 degrees of freedom
    assert found.text() == "2.0 ± 2.5"
    assert statistics.mean([4.0]).text() == "4.0"


def test_ratios_are_taken_seed_by_seed():
    assert statistics.shorter([1.0, 3.0], [2.0, 4.0]).value == pytest.approx((50 + 25) / 2)
    assert statistics.over([3.0, 5.0], [2.0, 4.0]).value == pytest.approx((50 + 25) / 2)


def test_results_are_collected_by_case_and_algorithm():
    other = Case("cnn", "wifi", "weak")
    found = timings.collect([(CASE, "ares", 1.0), (other, "ares", 5.0), (CASE, "ares", 2.0)])
    assert found == [timing("ares", 1.0, 2.0), timing("ares", 5.0, case=other)]


def test_csv_comes_back(tmp_path):
    found = [timing("ares", 1.0, 2.5), timing("uniform 3", 4.0, 4.25)]
    file = tmp_path / "t.csv"
    file.write_text(timings.timings_csv(found))
    assert timings.read_timings(file) == found


def test_another_csv_is_refused(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(SettingsError, match="not a table of epoch times; run the experiment again"):
        timings.read_timings(file)


def test_uniform_cuts_become_best_mean_and_worst():
    found = [timing("ares", 9.0), *(timing(f"uniform {cut}", s) for cut, s in ((1, 8.0), (2, 4.0), (3, 6.0)))]
    text = timings.timings_markdown(found)
    assert "| ares | 9.00 |" in text
    assert "| uniform, best cut | 4.00 (at 2) |" in text
    assert "| uniform, mean of cuts | 6.00 |" in text
    assert "| uniform, worst cut | 8.00 (at 1) |" in text
    assert "all at" not in text
    assert "| all at 3 | 6.00 |" in timings.timings_markdown(found[1:])


def test_a_table_has_all_servers_of_its_conditions():
    ones = [Case("cnn", "wifi", server, happening) for server in ("medium", "weak") for happening in ("a", "b")]
    text = timings.timings_markdown([timing("ares", float(n), case=case) for n, case in enumerate(ones)])
    assert text.count("###") == 2
    assert "### cnn, wifi, a\n\n| seconds an epoch | server medium | server weak |" in text
    assert "| ares | 0.00 | 2.00 |" in text


def test_the_best_baseline_has_the_least_mean():
    (case,) = cases(ares=(1.0, 9.0), dtfl=(4.0, 4.0), sfsl=(5.0, 5.0), dynsl=(2.0, 3.0)).values()
    assert goals.best_baseline(case).algorithm == "dtfl"
    assert goals.shorter_than_baseline(case).value == pytest.approx((50 + 25) / 2)


@pytest.mark.parametrize(("dynsl", "met"), [((60.0, 62.0), True), ((63.0, 63.0), False)])
def test_a_goal_is_met_or_not(dynsl, met):
    found = cases(ares=(100.0, 100.0), dynsl=dynsl, oracle_static=(60.0, 60.0))
    weak, *_ = goals.goals(found)
    assert weak.words == "resnet18, wired, weak: shorter than the best baseline"
    assert goals.judge(weak, found).met is met


def test_a_goal_over_many_cases_is_judged_by_the_worst():
    other = Case("cnn", "wifi", "weak")
    found = timings.by_case(
        [timing("dynsl", 1.02), timing("oracle_static", 1.0), timing("ares", 2.0)]
        + [timing(name, s, case=other) for name, s in (("dynsl", 1.05), ("oracle_static", 1.0), ("ares", 1.0))]
    )
    verdicts = {goal.words: goals.judge(goal, found) for goal in goals.goals(found)}
    over = verdicts["nothing happens: over oracle_static"]
    assert (over.met, over.where) == (False, "cnn, wifi, weak")
    assert over.value.value == pytest.approx(5)


def test_a_mean_over_cases_is_judged_by_the_mean():
    found = {}
    for number, case in enumerate(goals.goals({})[6].cases):
        faster = 60.0 if number % 2 else 78.0  # 40 and 22 % shorter
        found[case] = {"dynsl": timing("dynsl", faster, faster), "ares": timing("ares", 100.0, 100.0)}
    verdict = goals.judge(goals.goals({})[6], found)
    assert verdict.value.value == pytest.approx(31)
    assert verdict.met


def test_what_was_not_run_is_unknown():
    found = cases(ares=(1.0,), dynsl=(1.0,), oracle_static=(1.0,))
    rows = {row[0]: row for row in goals.goal_rows(found)}
    assert rows["resnet18, wired, strong: shorter than the best baseline"][3:] == [
        "unknown",
        "not run: resnet18, wired, strong",
    ]
    assert "yes" in rows["nothing happens: over oracle_static"]


def training(algorithm, seed, last, digest, heads="separate"):
    return Training(algorithm, heads, seed, (0.5, last), (10.0, 20.0), 2, digest)


def test_the_same_bits_are_counted():
    found = [training("fedavg", s, 0.97, f"{s}") for s in (0, 1)]
    found += [training("dynsl", 0, 0.97, "0"), training("dynsl", 1, 0.97, "x")]
    text = accuracy.accuracy_markdown(found)
    assert "| fedavg | 97.00 ± 0.00 | 2 of 2 | 2 |" in text
    assert "| dynsl | 97.00 ± 0.00 | 1 of 2 | 2 |" in text


def test_noise_is_what_the_interval_says():
    psl = [training("psl", s, a, "", "shared") for s, a in enumerate((0.90, 0.92, 0.94))]
    near = [training("dynsl", s, a, "", "shared") for s, a in enumerate((0.91, 0.91, 0.945))]
    far = [training("dynsl", s, a, "", "shared") for s, a in enumerate((0.95, 0.97, 0.991))]
    assert accuracy.within_noise(accuracy.difference(near, psl))
    assert not accuracy.within_noise(accuracy.difference(far, psl))
    assert "(beyond noise)" in accuracy.accuracy_markdown([*psl, *far])
    assert "noise" not in accuracy.accuracy_markdown([psl[0], far[0]])  # of one seed


def test_time_to_accuracy_is_the_end_of_the_first_round_that_has_it():
    found = [training("fedavg", 0, 0.96, ""), training("fedavg", 1, 0.92, "")]
    assert accuracy.time_to_accuracy_rows(found) == [["fedavg", "separate", "20.00 ± 0.00", "20.00 (1 never)", "never"]]


def test_errors_of_estimates_leave_out_the_start():
    ones = [Estimate(0, 3, float(t), 2e6, 1e6, 1e6, 1e6, 4e6, 1e6) for t in range(8)]
    start = [Estimate(0, 3, -1.0, 9e9, 9e9, 1.0, 1.0, 1.0, 1.0)] * 2
    rows = {row[0]: row[1:] for row in estimates.error_rows([*start, *ones])}
    assert rows["up, the rate at the moment"] == ["100", "100", "2.00"]
    assert rows["up, its mean of 10 s"] == ["50", "50", "0.50"]
    assert rows["down, the rate at the moment"] == ["0", "0", "1.00"]


def test_fallen_links_are_shown_by_device():
    case = Case("resnet18", "wifi", "weak", "links_drop")
    pi = Dropped(case, "pi", 4, 30.0, 300.0, 100.0, 80e6, 120.0, 6, 210.0, 180.0)
    local = Dropped(case, "orin", 10, 9.0, 5.0, 5.0, 0.0, 0.0, 10, 5.0, 9.0)
    (row,) = dropped.dropped_rows([pi, local])
    assert row == ["weak", "pi", "1", "4.0", "30.0", "300.0", "80.0", "120.0", "220.0", "6.0", "210.0", "180.0"]
    by_name = {name: timing(name, s) for name, s in (("dynsl", 3.0), ("fedavg", 2.0), ("uniform 1", 5.0))}
    assert [seconds for _, seconds in dropped.policy_rows(by_name)] == ["2.0", "3.0", "5.0"]


def test_blocks_are_shown_with_assumed_times():
    one = BlockFacts("cnn", 1, "conv1", 3e6, 2e6, 1e6, {"pi": 0.1})
    assert "| 1 conv1 | 3 | 2 | 1 | 100 |" in blocks.assumed_markdown([one])
    assert blocks.assumed_csv([one]).splitlines()[1] == "cnn,1 conv1,3,2,1,100"
    assert (
        "| cnn 1 conv1 | 1 | 2 | 0.5 |"
        in blocks.measured_tables([BlockMeasured("cnn", 1, "conv1", 1e-3, 2e-3, 5e-4)])[0]
    )


def test_equal_results_give_equal_figures(tmp_path):
    found = cases(ares=(2.0, 2.1), dynsl=(1.0, 1.1), oracle=(1.0, 1.0))
    cuts = timings.by_case(timing(f"uniform {cut}", float(cut)) for cut in (1, 2, 3))
    ones = [Estimate(0, c, float(t), 2e6, 1e6, 1e6, 1e6, 4e6, 1e6) for t in range(3) for c in range(4)]
    facts = [BlockFacts("cnn", i, "b", 3e6, 2e6, 1e6, {"pi": 0.1}) for i in (1, 2)]
    draws = (
        lambda path: figures.timings_figure(found, path),
        lambda path: figures.uniform_figure(cuts, path),
        lambda path: figures.estimates_figure(ones, path),
        lambda path: figures.blocks_figure(facts, path),
        lambda path: figures.accuracy_figure([training("fedavg", 0, 0.9, "")], path),
    )
    for draw in draws:
        draw(tmp_path / "a.svg")
        draw(tmp_path / "b.svg")
        first = (tmp_path / "a.svg").read_bytes()
        assert first == (tmp_path / "b.svg").read_bytes()
        assert b"<svg" in first
