"""conf/ and overrides to settings."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dynsl_app.compose import compose, conf_dir, split_overrides
from dynsl_app.errors import SettingsError
from dynsl_app.settings import Settings
from dynsl_app.validate import known_settings, validate

CONF = Path(__file__).parent.parent / "conf"
GROUPS = ("algorithm", "model", "data", "optimizer", "heads", "server", "wire", "fleet", "dynamics", "telemetry")
ORACLES = ("oracle", "oracle_bound", "oracle_paid", "oracle_static")
NEEDS = {
    "heads=shared": ["algorithm=uniform"],
    "algorithm=dynsl_profiled": ["telemetry=file", "telemetry.profile_file=p.json"],
    **{f"algorithm={name}": ["runtime=testbed"] for name in ORACLES},
    **{f"dynamics={file.stem}": ["runtime=testbed"] for file in (CONF / "dynamics").glob("*.yaml")},
}
"""What some options only make sense with."""


def options() -> list[str]:
    return [f"{group}={file.stem}" for group in GROUPS for file in sorted((CONF / group).glob("*.yaml"))]


def leaves(plain: dict, prefix: str = "") -> set[str]:
    found = set()
    for key, value in plain.items():
        name = f"{prefix}{key}"
        found |= {name} | (leaves(value, f"{name}.") if isinstance(value, dict) else set())
    return found


def test_the_defaults():
    settings = compose([])
    assert isinstance(settings, Settings)
    assert (settings.runtime, settings.seed, settings.rounds, settings.clients) == ("local", 0, 3, 4)
    assert (settings.algorithm.name, settings.model.name, settings.data.name) == ("dynsl", "cnn", "digits")
    assert (settings.data.batch, settings.data.alpha) == (8, 0.5)
    assert (settings.optimizer.name, settings.optimizer.lr) == ("adam", 1e-3)
    assert (settings.wire.name, settings.wire.tls) == ("grpc", "on")


def test_every_setting_is_in_conf_with_its_default():
    """So that each can be set without a plus sign, and library users get what the command's users get."""
    plain = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    del plain["defaults"], plain["hydra"]
    assert leaves(plain) == known_settings()
    assert validate(plain) == Settings()


@pytest.mark.parametrize("option", options())
def test_every_option_of_every_group_composes(option):
    settings = compose([option, *NEEDS.get(option, [])])
    group, name = option.split("=")
    if group == "telemetry":
        assert settings.telemetry.profile == name
    elif group not in ("heads", "server"):
        assert getattr(settings, group).name == name


def test_every_group_is_tested():
    folders = {folder.name for folder in CONF.iterdir() if folder.is_dir()} - {"hydra"}
    assert folders == {*GROUPS, "experiment"}  # tests/testbed/test_experiments.py


def test_overrides_win_over_groups():
    settings = compose(["optimizer.lr=0.3", "optimizer=sgd", "model.params.width=3", "+data.params.path=x"])
    assert (settings.optimizer.name, settings.optimizer.lr, settings.optimizer.momentum) == ("sgd", 0.3, 0.9)
    assert (settings.model.params["width"], settings.data.params) == (3, {"path": "x"})


def test_overrides_out_of_one_line():
    """User case 37: one string carries all overrides."""
    overrides = split_overrides("algorithm=psl rounds=5  data.shape=[3,8,8] name='a b' +model.params.w=[1,2]")
    assert overrides == ["algorithm=psl", "rounds=5", "data.shape=[3,8,8]", "name=a b", "+model.params.w=[1,2]"]
    assert compose(overrides).name == "a b"
    assert split_overrides("") == []


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ("modle=cnn", "unknown setting modle; did you mean model?"),
        ("optimizer.learning_rate=1", "unknown setting optimizer.learning_rate; there are optimizer.betas"),
        ("+foo=1", "unknown setting foo"),
        ("batch=3", "did you mean data.batch"),
        (
            "algorithm=splitfed_v3",
            "algorithm=splitfed_v3: no such option; did you mean splitfed_v2? (there are: ",
        ),
        ("wire=grcp", "wire=grcp: no such option; did you mean grpc?"),
        ("rounds=three", "rounds=three: must be a valid integer"),
        ("optimizer.lr=-1", "optimizer.lr=-1: must be greater than 0"),
        ("wire.tls=maybe", "wire.tls=maybe: must be 'on' or 'off'"),
        ("data.shape=[3,8]", "data.shape=[3, 8]: needs more values than 2, such as [3,32,32]"),
        ("rounds", "cannot read the override 'rounds': write setting=value"),
        ("data.shape=[1,", "cannot read the override 'data.shape=[1,'"),
        ("seed=1,2", "cannot compose seed=1,2"),
        ("optimizer=null", "cannot compose optimizer=null"),
        ("name=${nothing}", "name: Interpolation key 'nothing' not found"),
        ("faults=off", "faults=off: must be a dictionary"),
        ("algorithm=fedavg algorithm.cut=2", "algorithm.cut=2 contradicts algorithm=fedavg"),
    ],
)
def test_a_bad_override_is_one_clear_line(overrides, says):
    """User case 37: an unknown key is an error."""
    with pytest.raises(SettingsError, match=re.escape(says)) as caught:
        compose(split_overrides(overrides))
    assert "\n" not in str(caught.value)


def test_a_bad_quotation_is_refused():
    with pytest.raises(SettingsError, match="No closing quotation"):
        split_overrides("name='a")


def test_an_unknown_config_name_is_refused():
    with pytest.raises(SettingsError, match=r"config-name=other: there is no conf/other\.yaml"):
        compose([], config_name="other")


def test_composing_again_after_an_error():
    with pytest.raises(SettingsError):
        compose(["rounds=0"])
    assert compose(["rounds=2"]).rounds == 2


def test_conf_is_found_in_a_wheel_and_beside_the_package(tmp_path):
    package = tmp_path / "dynsl_app"
    with pytest.raises(SettingsError, match="install the package again"):
        conf_dir(package)
    for folder in (tmp_path / "conf", package / "conf"):
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
        assert conf_dir(package) == folder
    assert conf_dir() == CONF
