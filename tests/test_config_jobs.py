"""A config becomes cells and jobs: nothing is lost, what is compared stays together, errors name the key."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ringmark import catalog, cli, cluster, dag, job, schema, yamlfile
from ringmark import config as configs
from ringmark.commands import run
from ringmark.errors import UserError
from ringmark.record import Asked

GRID = {
    "methods": ["ring"],
    "seqlen_global": [64, 128],
    "shapes": [{"num_heads_q": 2, "num_heads_kv": 2}],
}
SMALL = {
    "campaign": "c",
    "mesh": {"nodes": 1, "gpus": 2},
    "grids": [GRID],
    "repeats": 2,
    "cells_per_job": 4,
    "seed": 5,
}


def with_grid(**change: object) -> dict:
    return {**SMALL, "grids": [{**GRID, **change}]}


def test_every_committed_config_is_read() -> None:
    found = sorted(Path("config").glob("*.yaml"))
    assert found
    for path in found:
        assert configs.cells(configs.read(path)), path


def test_native_means_every_file_of_the_folder() -> None:
    config = configs.from_data(with_grid(methods=["native"]), "c")
    assert set(configs.rows(config.grids[0])) == {*catalog.native_names(), "single"}


def test_the_bound_is_always_measured() -> None:
    assert configs.rows(configs.from_data(SMALL, "c").grids[0]) == ["single", "ring"]


def test_jobs_hold_every_cell_once_and_keep_blocks_whole(tmp_path: Path) -> None:
    config = configs.from_data(with_grid(methods=["ring", "ring+wire=native", "te_p2p"]), "c")
    made = configs.jobs(config, tmp_path)
    items = [(item.cell.key, item.asked.repeat) for one in made for item in one.items]
    expected = [(cell.key, repeat) for repeat in range(2) for cell in configs.cells(config)]
    assert sorted(items) == sorted(expected)
    assert len({item.out for one in made for item in one.items}) == len(items)
    for one in made:
        assert len(one.items) <= max(config.cells_per_job, 4)
        blocks = {(i.cell.seqlen_global, i.cell.phase) for i in one.items}
        assert len(one.items) == 4 * len(blocks)


def test_the_order_is_shuffled_by_the_seed(tmp_path: Path) -> None:
    many = {**with_grid(methods=["native", "peers"]), "cells_per_job": 100}
    order = [
        [item.cell.row for item in one.items] for one in configs.jobs(configs.from_data(many, "c"), tmp_path)
    ]
    again = [
        [item.cell.row for item in one.items] for one in configs.jobs(configs.from_data(many, "c"), tmp_path)
    ]
    other = configs.jobs(configs.from_data({**many, "seed": 6}, "c"), tmp_path)
    assert order == again
    assert order != [[item.cell.row for item in one.items] for one in other]
    assert order[0] != order[1], "the repeats have orders of their own"


def test_grids_of_one_length_are_one_block() -> None:
    """What is compared across kernels is measured together: open tables hold each method's best kernel."""
    grids = [
        {**GRID, "kernels": ["flash4"]},
        {**GRID, "methods": ["te_p2p", "ring"], "kernels": ["cudnn", "flash4"]},
    ]
    blocks = configs.blocks(configs.from_data({**SMALL, "grids": grids}, "c"))
    assert len(blocks) == 4
    for block in blocks:
        assert len({(c.seqlen_global, c.phase) for c in block}) == 1
        assert len(set(block)) == len(block) == 6


def test_a_changed_question_is_another_job(tmp_path: Path) -> None:
    first = configs.jobs(configs.from_data(SMALL, "c"), tmp_path)[0]
    second = configs.jobs(configs.from_data({**SMALL, "measure": {"min_iterations": 7}}, "c"), tmp_path)[0]
    assert first.id != second.id


def test_a_job_is_read_back_equal(tmp_path: Path) -> None:
    made = configs.jobs(configs.from_data(SMALL, "c"), tmp_path)[0]
    job.save(made, tmp_path / "j.json")
    assert job.load(tmp_path / "j.json") == made
    assert made.pending() == list(range(len(made.items)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_grid(methods=["rnig"]), "did you mean 'ring'?"),
        (with_grid(methods=["ring+wire=native+wire=auto"]), "gives wire twice: leave one"),
        (with_grid(method=["ring"]), "did you mean 'methods'?"),
        (with_grid(seqlen_global=[]), "seqlen_global is empty"),
        (with_grid(seqlen_global=["many"]), "must be a whole number"),
        ({"mesh": {"nodes": 1, "gpu": 2}}, "did you mean 'gpus'?"),
        ({"campaign": "../up"}, "names a folder"),
        ({"grid": [GRID]}, "did you mean 'grids'?"),
        (with_grid(phases=["fwd_bw"]), "did you mean 'fwd_bwd'?"),
        (with_grid(shapes=[{"num_heads_q": 5, "num_heads_kv": 2}]), "does not divide"),
        (with_grid(shapes=[{"num_heads_q": 2, "num_heads_kv": 0}]), "num_heads_kv is 0"),
        (with_grid(shapes=[{"num_heads_kv": None}]), "num_heads_kv must be a whole number"),
        ({"measure": {"warmpu": 3}}, "did you mean 'warmup'?"),
        ({"measure": {"warmup": 1}}, "at least 3 untimed iterations"),
        ({"measure": {"min_iterations": 9, "max_iterations": 3}}, "not below it"),
        ({"measure": {"ci_target": -1}}, "ci_target is -1"),
        ({"measure": {"time_limit_s": -1}}, "time_limit_s is -1"),
        ({"measure": {"time_limit_s": 0}}, "time_limit_s is 0"),
        ({"measure": {"warmup_s": -4}}, "warmup_s is -4"),
        ({"measure": {"warmup_s": math.nan}}, "measure.warmup_s must be a finite number, not nan"),
        ({"measure": {"protocols": []}}, "protocols is []"),
        ({"measure": {"protocols": ["isolated", "isolated"]}}, "each once"),
        ({"cell_limit_s": -1}, "cell_limit_s is -1"),
        ({"start_limit_s": 0}, "start_limit_s is 0"),
        (with_grid(seqlen_global=[-1]), "grids[0]: seqlen_global is -1"),
        (
            with_grid(seqlen_global=[64, 10**22]),
            "grids[0]: seqlen_global is 10000000000000000000000: no tensor",
        ),
        (
            with_grid(shapes=[{"head_dim": 10**17}]),
            "b1-hq40-hkv40-d100000000000000000-bf16-causal has past 1 ",
        ),
        (with_grid(methods=["ring+wire=a b"]), "grids[0]: methods: ring+wire=a b: wire is a b"),
        (with_grid(kernels=["a/b"]), "grids[0]: there is no kernel 'a/b'"),
        (with_grid(kernels=["flash9"]), "there is no kernel 'flash9': did you mean"),
        (with_grid(methods=["ring+foo=1"]), "ring has no option 'foo'"),
        (with_grid(methods=["ring+wire=x"]), "wire is x: choose one of auto, native, float32"),
        (with_grid(methods=["te_p2p+backend=flsh"]), "backend is flsh: choose one of auto, fused"),
        (with_grid(methods=["nativ"]), "did you mean 'native'?"),
        (with_grid(methods=["xyz"]), "peers"),
        ({"campaign": "published"}, "is taken"),
        ({"campaign": "opt_bwd"}, "is taken"),
        ({"campaign": "templates"}, "is taken"),
    ],
)
def test_mistakes_name_the_key_and_the_nearest_valid_one(change: dict, says: str) -> None:
    with pytest.raises(UserError) as caught:
        configs.from_data({**SMALL, **change}, "config/mine.yaml")
    assert says in str(caught.value)


def test_kv_heads_are_as_many_as_query_heads_where_neither_a_config_nor_run_says_otherwise() -> None:
    config = configs.from_data(with_grid(shapes=[{"num_heads_q": 2}, {}]), "c")
    assert [str(shape) for shape in config.grids[0].shapes] == [
        "b1-hq2-hkv2-d128-bf16-causal",
        "b1-hq40-hkv40-d128-bf16-causal",
    ]
    words = ["run", "--method", "ring", "--seqlen", "512", "--heads", "2", "--dtype", "bf16"]
    asked = run.cell_of(cli.build_parser().parse_args(words), gpus=0)
    assert asked.shape == config.grids[0].shapes[0]


def test_run_asks_of_one_cell_what_a_config_asks_of_all() -> None:
    """Unless a word of either says otherwise."""
    words = ["run", "--method", "ring", "--seqlen", "512"]
    config = configs.from_data({name: SMALL[name] for name in ("campaign", "mesh", "grids")}, "mine.yaml")
    parser = cli.build_parser()
    assert run.asked_of(parser.parse_args(words)) == configs.asked(config, 0) == Asked()
    exactly = run.asked_of(parser.parse_args([*words, "--iters", "7", "--protocol", "pipelined"]))
    assert exactly == Asked(protocols=["pipelined"], min_iterations=7, max_iterations=7)


def test_no_yaml_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="no valid YAML"):
        configs.read(tmp_path / "x.yaml")
    with pytest.raises(UserError, match="cannot read config"):
        configs.read(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"campaign: \xff\xfe", "is not UTF-8 text"),
        (b"campaign: a\nmesh: {gpus: 2}\ncampaign: b\n", "line 3 gives the key 'campaign' again"),
        (b"campaign: a\nmesh: {gpus: 2, gpus: 4}\n", "gives the key 'gpus' again"),
        (b"campaign: 2026-99-99\n", "is no valid YAML"),
        (
            b"campaign: a\nlengths: [0512]\n",
            "x.yaml line 2 has 0512, which YAML reads as 330: write the number",
        ),
        (b"lengths: [1:30]\n", "line 1 has 1:30, which YAML reads as 90"),
        (b"time_limit_min: 4:00:00\n", "line 1 has 4:00:00, which YAML reads as 14400"),
        (b"time_limit_s: 1:30.5\n", "line 1 has 1:30.5, which YAML reads as 90.5"),
    ],
)
@pytest.mark.parametrize("reader", [configs.read, cluster.read])
def test_every_file_of_a_user_is_read_with_the_same_care(
    reader: Callable[[Path], object], data: bytes, says: str, tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_bytes(data)
    with pytest.raises(UserError) as caught:
        reader(tmp_path / "x.yaml")
    assert says in str(caught.value)


def test_numbers_that_are_what_they_seem_are_taken() -> None:
    text = "[0, -3, 65_536, 0.5, 1.5e+3, 0x20, '0512', 089, '1:30']"
    assert yamlfile.parse(text, "x.yaml") == [0, -3, 65536, 0.5, 1500.0, 32, "0512", "089", "1:30"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("env: {NCCL_NVLS_ENABLE: off}", "x.yaml.env.NCCL_NVLS_ENABLE must be a text, not False: put it in"),
        ("env: {ON: '1'}", "x.yaml.env has the key True, which is no text: put it in quotes"),
        ("partition: 12", "x.yaml.partition must be a text, not 12: put it in quotes"),
        ("modules: [cuda, 12.4]", "x.yaml.modules[1] must be a text, not 12.4: put it in quotes"),
        ("name: [a]", "x.yaml.name must be a text, not ['a']"),
    ],
)
def test_what_yaml_takes_for_no_text_is_told(text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        schema.load(cluster.Cluster, yamlfile.parse(text, "x.yaml"), "x.yaml")
    assert says in str(caught.value)


def test_a_merged_key_may_be_given_another_value(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {<<: [*a, {y: 4}]}\n"
    assert yamlfile.parse(text, "x.yaml")["b"] == {"x": 3, "y": 2}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mem_mb": -4}, "mem_mb is -4"),
        ({"mem_mb": 0}, "mem_mb is 0"),
        ({"gpus_per_node": -1}, "gpus_per_node is -1"),
    ],
)
def test_a_cluster_of_no_size_is_refused(change: dict, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({"name": "x", **change}))
    with pytest.raises(UserError, match=says):
        cluster.read(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scratch": "relative dir"}, "scratch is 'relative dir': give a whole path"),
        ({"mounts": ["relative"]}, "mounts: 'relative' is no mount: write /HOST:/CONTAINER"),
        ({"mounts": ["/a:/b", "/a:b"]}, "mounts: '/a:b' is no mount"),
        ({"mounts": ["/a:/b:zz"]}, "mounts: '/a:/b:zz' has the option 'zz': did you mean 'z'?"),
        ({"mounts": ["/a:/b:rw,rslav"]}, "has the option 'rslav': did you mean 'rslave'?"),
        ({"mounts": ["a:/b"], "runtime": "pyxis"}, "mounts: 'a:/b' is no mount"),
        ({"env": {"A=B": "x y"}}, "'A=B' is no variable's name: use letters, digits and _"),
        ({"env": {"1A": "x"}}, "'1A' is no variable's name"),
        ({"pass_env": ["A B"]}, "'A B' is no variable's name"),
    ],
)
def test_what_no_node_could_start_with_is_refused_with_its_key(change: dict, says: str) -> None:
    with pytest.raises(UserError) as caught:
        schema.load(cluster.Cluster, {"name": "x", **change}, "x.yaml")
    assert str(caught.value).startswith("x.yaml: ")
    assert says in str(caught.value)


def test_mounts_and_variables_of_every_runtime_are_taken() -> None:
    usual = {"mounts": ["/a b:/b", "/a:/b:ro", "/a:/b:rw,z"], "scratch": "/x y", "pass_env": ["_A1"]}
    for runtime, more in (
        ("docker", []),
        ("enroot", ["/a:/b:none:bind,x-create=dir"]),
        ("pyxis", ["/a"]),
        ("apptainer", ["/a"]),
    ):
        data = {"name": "x", "runtime": runtime, **usual, "mounts": [*usual["mounts"], *more]}
        assert schema.load(cluster.Cluster, data, "x.yaml").scratch == "/x y"


@pytest.mark.parametrize("given", [{"cluster": "x"}, {"campaign": "q2"}, {"measure": {"warmup": 4}}])
def test_single_keys_lie_over_the_default_config_whatever_they_are(given: dict) -> None:
    local = yamlfile.read(dag.DEFAULT_CONFIG)
    found = dag.with_default(given, [])
    measure = {**local["measure"], **given.get("measure", {})}
    assert found == {**local, **given, "measure": measure}


def test_a_config_file_has_no_default_below_it(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    assert dag.with_default(SMALL, [path]) == SMALL
    with pytest.raises(SystemExit, match="config lacks the key 'mesh'"):
        dag.Campaign.from_snakemake({"campaign": "q2"}, [path])


def test_a_list_of_records_that_are_gone_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dag, "RESULTS", tmp_path)
    campaign = dag.Campaign.from_snakemake(SMALL)
    manifest = Path(campaign.manifests[0])
    manifest.parent.mkdir(parents=True)
    manifest.write_text("[]")
    dag.Campaign.from_snakemake(SMALL)
    assert not manifest.exists()


def test_no_campaign_takes_the_name_of_another_folder() -> None:
    for folder in (*Path("results").iterdir(), *Path("paper_tables").iterdir()):
        found = Path("results") / folder.stem
        is_campaign = (found / "records").is_dir() or (found / "jobs").is_dir()  # measured, or planned by you
        assert is_campaign or folder.stem.lower() in configs.TAKEN, folder
