"""Worlds out of fleets and models: who is there, what blocks take, what crosses a link."""

import math
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from dynsl_app.compose import compose, conf_dir
from dynsl_app.data.source import DataSpec
from dynsl_app.errors import SettingsError
from dynsl_app.fleet import SERVERS, Device, Fleet
from dynsl_app.model.build import build_chain
from dynsl_app.model.chain import Block, Chain
from dynsl_app.model.probe import probe
from dynsl_app.plan import Power
from dynsl_app.settings import ModelSettings, OptimizerSettings
from dynsl_app.telemetry.profiling import measure
from dynsl_app.testbed.links import Constant, Looped, Walk
from dynsl_app.testbed.make_world import make_world, training_flops

IMAGE = DataSpec((3, 32, 32), 10)
SPEC = DataSpec((1, 8, 8), 10)


def test_flops_are_the_published_ones():
    """ResNet-18 with a 3×3 stem has 0.56 G multiplications on 3×32×32 (the usual CIFAR variant)."""
    chain = build_chain(ModelSettings(name="resnet18"), IMAGE, 0)
    flops = training_flops(chain, IMAGE, 32)
    # 3×3 from 3 to 64 channels on 32×32, two a multiplication, three forwards, 32 samples.
    assert flops[0] == 2 * 9 * 3 * 64 * 32 * 32 * 3 * 32
    assert flops[1] == 2 * 2 * 9 * 64 * 64 * 32 * 32 * 3 * 32
    assert flops[-1] == 2 * 512 * 10 * 3 * 32
    assert sum(flops) / (2 * 3 * 32) == pytest.approx(0.556e9, rel=0.005)


@pytest.mark.parametrize("model", ["cnn", "mlp", "mobilenet_v2", "vgg11", "vit_tiny"])
def test_every_block_takes_some_time(model):
    chain = build_chain(ModelSettings(name=model), IMAGE, 0)
    flops = training_flops(chain, IMAGE, 32)
    assert len(flops) == len(chain)
    assert min(flops) > 0


def test_a_block_without_arithmetic_counts_its_values():
    stages = [("pool", nn.AvgPool2d(2)), ("flatten", nn.Flatten()), ("fc", nn.Linear(16, 10))]
    chain = Chain(Block(index, [stage]) for index, stage in enumerate(stages, start=1))
    assert training_flops(chain, SPEC, 8) == (3 * 8 * 16, 3 * 8 * 16, 3 * 8 * 2 * 160)


def test_colext24_is_the_list(world_of):
    world = world_of(compose(["fleet=colext24"]).fleet)
    kinds = [(client.device, client.memory_bytes) for client in world.clients]
    expected = (
        [("jetson_agx_orin", 32e9)] * 2
        + [("jetson_orin_nano", 8e9)] * 4
        + [("jetson_xavier_nx", 8e9)] * 2
        + [("jetson_nano", 4e9)] * 2
        + [("lattepanda_delta_3", 8e9)] * 6
        + [("orange_pi_5b", 8e9)] * 8
    )
    assert kinds == expected
    assert [world.clients[n].name for n in (0, 1, 2, 23)] == [
        "jetson_agx_orin.0", "jetson_agx_orin.1", "jetson_orin_nano.0", "orange_pi_5b.7",
    ]  # fmt: skip
    speeds = {"jetson_agx_orin": 1500, "jetson_orin_nano": 450, "jetson_xavier_nx": 300, "jetson_nano": 90,
              "lattepanda_delta_3": 35, "orange_pi_5b": 30}  # fmt: skip
    work = sum(world.server.block_s) * 2000
    rates = [work / sum(client.block_s) / speeds[client.device] for client in world.clients]
    assert all(0.95 <= rate <= 1.05 for rate in rates)
    assert len(set(rates)) == 24
    assert {(c.up, c.down, c.rtt_s, c.batches) for c in world.clients} == {
        (Constant(117.5e6), Constant(117.5e6), 0.5e-3, 45)
    }
    assert (world.server.call_s, world.server.workers, world.server.access_Bps) == (2e-3, 1, 1.25e9)
    assert all(client.power.compute_W > client.power.send_W > 0 for client in world.clients)
    assert world.happenings == ()


def test_servers_differ_by_speed(world_of):
    times = {name: world_of(compose(["fleet=colext24", f"fleet.server={name}"]).fleet).server for name in SERVERS}
    assert times["weak"].block_s == pytest.approx([4 * s for s in times["medium"].block_s])
    assert times["medium"].block_s == pytest.approx([4 * s for s in times["strong"].block_s])
    assert world_of(Fleet(devices=[Device("a", speed=1)])).server == times["medium"]


def test_the_same_seed_makes_the_same_world_and_another_does_not(world_of):
    for name in ("colext24", "generated"):
        fleet = compose([f"fleet={name}", "fleet.links=wifi"]).fleet
        assert world_of(fleet) == world_of(fleet)
        assert world_of(fleet).clients[0] != world_of(fleet, seed=1).clients[0]


def test_bytes_are_those_of_the_real_system(chain, world_of):
    world = world_of(Fleet(devices=[Device("a", speed=1)]))
    cuts = [shape.bytes_per_sample * 8 for shape in probe(chain, SPEC)]
    assert [size - cut for size, cut in zip(world.up_bytes[:-1], cuts, strict=False)] == [8 * 8 + 512] * 4
    assert [size - cut for size, cut in zip(world.down_bytes[:-1], cuts, strict=False)] == [512] * 4
    assert (world.up_bytes[-1], world.down_bytes[-1]) == (0, 0)
    for block, size in zip(chain.span(0, len(chain)), world.state_bytes, strict=True):
        own = sum(t.numel() * t.element_size() for t in (*block.parameters(), *block.buffers()))
        moments = 2 * 4 * sum(p.numel() for p in block.parameters())
        steps = 4 * len(list(block.parameters()))
        assert size == own + moments + steps


def test_every_client_may_have_its_own_number_of_batches(world_of):
    fleet = Fleet(devices=[Device("a", 3, speed=1)])
    assert [client.batches for client in world_of(fleet, batches=[3, 0, 7]).clients] == [3, 0, 7]
    with pytest.raises(SettingsError, match="batches are given for 2 clients, fleet=none has 3"):
        world_of(fleet, batches=[3, 0])


def test_links_are_the_devices_own_before_the_fleets(world_of, tmp_path):
    (tmp_path / "a.trace").write_text("0 8\n1 4\n2 2\n")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "links: lte\nreference_gflops: 10\ndevices:\n"
        "- {name: walks, compute: 1, rtt_s: 0.2}\n"
        "- {name: fixed, compute: 2, up_Bps: 1e6, rtt_s: 0.1}\n"
        "- {name: wired, compute: 2, links: wired}\n"
        "- {name: traced, count: 2, compute: 2, up_trace: a.trace, down_Bps: 3e6}\n"
    )
    walks, fixed, wired, traced, other = world_of(compose([f"fleet.file={file}"]).fleet).clients
    assert isinstance(walks.up, Walk)
    assert isinstance(walks.down, Walk)
    assert (walks.rtt_s, fixed.rtt_s, wired.rtt_s, traced.rtt_s) == (0.2, 0.1, 0.5e-3, 0)
    assert (fixed.up, fixed.down) == (Constant(1e6), Constant(math.inf))
    assert wired.up == Constant(117.5e6)
    assert isinstance(traced.up, Looped)
    assert traced.down == Constant(3e6)
    # Two of a kind do not follow the trace in step.
    assert [next(client.up.segments(0)) for client in (traced, other)] == [(1.0, 1e6), (0.5, 5e5)]
    (tmp_path / "a.trace").write_text("")
    with pytest.raises(SettingsError, match=r"a\.trace: is empty"):
        world_of(compose([f"fleet.file={file}"]).fleet)


def test_speeds_relative_to_this_machine_need_a_reference(world_of):
    demo = compose(["fleet=demo"]).fleet
    fast, slow, *_ = world_of(demo).clients
    assert slow.block_s == pytest.approx([7 * seconds for seconds in fast.block_s])
    assert sum(world_of(demo).server.block_s) * 500 == pytest.approx(sum(fast.block_s) * 42.5)
    with pytest.raises(SettingsError, match=r"device fast has compute, .*; set fleet\.reference_gflops"):
        world_of(replace(demo, reference_gflops=None))


def test_measured_profiles_replace_assumed_ones(chain, world_of):
    profile = measure(chain, SPEC, 8, OptimizerSettings(), model="cnn", batches=1)
    fleet = Fleet(devices=[Device("a", 2, speed=1, spread=0.3), Device("b", speed=2)])
    plain = world_of(fleet)
    world = world_of(fleet, profiles={"a": profile, "server": profile})
    assert world.server.block_s == profile.block_s
    assert world.clients[2] == plain.clients[2]
    ratios = np.array([np.array(client.block_s) / profile.block_s for client in world.clients[:2]])
    assert np.allclose(ratios, ratios[:, :1])
    # The spread between two devices is that without a profile.
    assert ratios[0, 0] / ratios[1, 0] == pytest.approx(plain.clients[0].block_s[0] / plain.clients[1].block_s[0])
    demo = compose(["fleet=demo"]).fleet
    slow = world_of(replace(demo, reference_gflops=None), profiles={"reference": profile}).clients[1]
    assert slow.block_s == pytest.approx([14 * seconds for seconds in profile.block_s])


def test_profiles_of_something_else_are_refused(chain, world_of):
    profile = measure(chain, SPEC, 4, OptimizerSettings(), model="cnn", batches=1)
    fleet = Fleet(devices=[Device("a", speed=1)])
    with pytest.raises(SettingsError, match="a: the profile is for batch=4, this run has 8"):
        world_of(fleet, profiles={"a": profile})
    with pytest.raises(SettingsError, match="a profile for pi: fleet=none has no such device; there are a, server"):
        world_of(fleet, profiles={"pi": profile})


def test_a_fleet_without_devices_is_refused(world_of):
    with pytest.raises(SettingsError, match="fleet=none has no devices to simulate; choose another"):
        world_of(Fleet())


def test_generated_fleets_follow_their_parameters(world_of):
    fleet = compose(["fleet=generated", "fleet.generate.count=3000"]).fleet
    world = world_of(fleet)
    work = sum(world.server.block_s) * 2000
    rates = np.array([work / sum(client.block_s) for client in world.clients])
    assert np.median(rates) == pytest.approx(100, rel=0.1)
    assert np.log(rates).std() == pytest.approx(1, rel=0.1)
    assert rates.min() >= 10 * (1 - 1e-9)
    assert rates.max() <= 2000 * (1 + 1e-9)
    rtts = [client.rtt_s for client in world.clients]
    assert [rtts.count(rtt) / 3000 for rtt in (0.5e-3, 4e-3, 50e-3)] == pytest.approx([0.2, 0.6, 0.2], abs=0.03)
    assert world.clients[0].power == Power(10, 4, 4)
    # More clients leave the others as they are.
    few = compose(["fleet=generated", "fleet.generate.count=10", "fleet.links=wifi"]).fleet
    many = compose(["fleet=generated", "fleet.generate.count=20", "fleet.links=wifi"]).fleet
    assert world_of(few).clients == world_of(many).clients[:10]
    assert {client.rtt_s for client in world_of(few).clients} == {4e-3}


def test_ten_thousand_clients_take_seconds(world_of):
    fleet = compose(["fleet=generated", "fleet.generate.count=10000"]).fleet
    before = time.process_time()
    world = world_of(fleet)
    assert len(world.clients) == 10_000
    assert time.process_time() - before < 10


def test_make_world_leaves_the_model_as_it_is(chain):
    before = {name: value.clone() for name, value in chain.state_dict().items()}
    make_world(compose(["fleet=demo"]).fleet, chain, SPEC, 8, 45, OptimizerSettings(), 0, model="cnn")
    assert all(bool((value == before[name]).all()) for name, value in chain.state_dict().items())


@pytest.mark.parametrize("name", ["colext24", "homogeneous", "generated", "demo"])
def test_every_figure_that_is_assumed_says_so(name):
    """None of the fleets that come with the project is measured as a whole."""
    text = (conf_dir() / "fleet" / f"{name}.yaml").read_text()
    assert "assumed" in text
    for device in compose([f"fleet={name}"]).fleet.devices:
        if device.speed is not None:
            assert re.search("assumed|measured", device.basis), device.name
