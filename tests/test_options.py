"""Options: a plan, without torch, refuses what the method itself would refuse."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringmark import catalog, cli, kernels, methods, peers
from ringmark.bench import ask
from ringmark.cell import Cell, MeshShape, OptionValue, Shape
from ringmark.comm.homeward import WIRES
from ringmark.errors import UserError
from ringmark.options import Options

HERE = Shape(1, 4, 4, 16, "fp32")


def kind(name: str) -> type[methods.Method]:
    return (methods if name in methods.names() else peers).load(name)


@pytest.mark.parametrize("name", [*methods.names(), *peers.names()])
def test_what_a_file_states_is_what_its_class_takes(name: str) -> None:
    """Read from the text, without torch, or from the class: a plan and a run know the same options."""
    found = kind(name)
    assert catalog.options(name) == Options(found.default_options, found.choices)
    assert found.choices.keys() <= found.default_options.keys()
    assert found().options == found.default_options  # the defaults pass their own law


def test_the_kernels_of_a_plan_are_those_that_can_be_loaded() -> None:
    assert catalog.kernel_names() == kernels.names()


def test_the_wires_are_those_of_the_ring() -> None:
    for name in ("ring", "burst", "usp"):
        assert kind(name).choices["wire"] == WIRES


@pytest.mark.parametrize("name", [*methods.names(), *peers.names()])
def test_no_value_of_the_wrong_kind_is_taken(name: str) -> None:
    found = kind(name)
    for option, default in found.default_options.items():
        wrong: list[OptionValue] = ["abc", "0.5", -3]
        wrong += [1, 0] if isinstance(default, bool) else [True]
        for value in wrong:
            with pytest.raises(UserError, match=f"{option} is {str(value).lower()}: (give|choose)"):
                found(**{option: value})


@pytest.mark.parametrize(
    ("method", "options", "mesh", "says"),
    [
        ("usp", {"head_groups": 9}, MeshShape(1, 2), "head_groups is 9, but a rank gets 2 kv heads"),
        ("ulysses", {"head_groups": 3}, MeshShape(1, 2), "head_groups is 3, but a rank gets 2 kv heads"),
        ("usp", {"ulysses": 1, "head_groups": 2}, MeshShape(1, 2), "teams of one rank"),
        ("usp", {"ulysses": 3}, MeshShape(1, 2), "ulysses is 3: it must divide the 2 ranks"),
        ("te_a2a_p2p", {"a2a": 3}, MeshShape(1, 4), "a2a=3 does not divide 4 ranks"),
        ("internevo_double_ring", {"window": 3}, MeshShape(1, 4), "window=3 does not divide 4 ranks"),
    ],
)
def test_what_would_not_run_as_asked_is_refused(
    method: str, options: dict[str, OptionValue], mesh: MeshShape, says: str
) -> None:
    shape = HERE if method in methods.names() else Shape(1, 4, 4, 16, "bf16")
    cell = Cell(method, 64, shape, "fwd", mesh, options=options)
    assert says in (kind(method)(**options).unsupported(cell) or "")


def test_a_method_without_a_degree_is_told_of_its_ranks() -> None:
    cell = Cell("ulysses", 64, Shape(1, 3, 3, 16, "fp32"), "fwd", MeshShape(1, 2))
    assert kind("ulysses")().unsupported(cell) == (
        "3 heads cannot be dealt to 2 ranks: the number of ranks can be one of 1, 3"
    )
    assert "ulysses can be one of 1, 3" in (kind("usp")(ulysses=2).unsupported(cell) or "")


def test_a_method_is_asked_in_a_process_of_its_own_with_the_same_answer() -> None:
    for cell in (Cell("zigzag", 65, HERE, "fwd", MeshShape(1, 2)), Cell("ring", 64, HERE, "fwd")):
        assert ask.refusal_elsewhere(cell) == ask.refusal(cell)


@pytest.fixture
def read_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Options | None]]:
    """What a plan reads of a method with this text, in a package whose other method is the ring."""
    folder = tmp_path / "methods"
    folder.mkdir()
    shutil.copy(Path(methods.__file__).parent / "ring.py", folder)
    monkeypatch.setattr(catalog, "_PACKAGE", tmp_path)
    monkeypatch.setattr(catalog, "native_names", lambda: ["mine", "ring"])

    def read(text: str) -> Options | None:
        (folder / "mine.py").write_text(text, encoding="utf-8")
        return catalog.options("mine")

    for kept in (catalog.options, catalog.kernel_names):
        kept.cache_clear()
    yield read
    for kept in (catalog.options, catalog.kernel_names):
        kept.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "from .ring import Method as Ring\nclass Method(Ring):\n    default_options = {'tau': 1}\n",
        "from ringmark.methods import ring\nclass Method(ring.Method):\n    default_options = {'tau': 1}\n",
    ],
)
def test_a_plan_reads_options_however_the_ring_was_imported(
    text: str, read_of: Callable[[str], Options | None]
) -> None:
    found = read_of(text)
    assert found is not None
    assert {"tau", "wire"} <= set(found.defaults)


@pytest.mark.parametrize(
    "stated",
    [
        "MODES = ('a', 'b')\nclass Method(ring.Method):\n    default_options = {'mode': 'a'}\n"
        "    choices = {'mode': MODES}\n",
        "A: str = 'a'\nMODES = (A, 'b')\nclass Method(ring.Method):\n    default_options = {'mode': A}\n"
        "    choices = {'mode': MODES}\n",
    ],
)
def test_a_plan_reads_constants_of_the_same_file(
    stated: str, read_of: Callable[[str], Options | None]
) -> None:
    found = read_of("from ringmark.methods import ring\n" + stated)
    assert found is not None
    assert found.choices["mode"] == ("a", "b")
    assert found.defaults["mode"] == "a"


def test_a_plan_says_which_options_it_could_not_read(
    read_of: Callable[[str], Options | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "from ringmark.methods import ring\nclass Method(ring.Method):\n    choices = made()\n"
    assert read_of(text) is None
    config = tmp_path / "c.yaml"
    grid = "{methods: [mine+wire=native], seqlen_global: [64], shapes: [{num_heads_q: 2, num_heads_kv: 2}]}"
    config.write_text(f"campaign: c\nmesh: {{gpus: 2}}\ngrids:\n  - {grid}\n")
    for argv in (["cells", str(config)], ["plan", str(config), "--results", str(tmp_path)]):
        assert cli.main(argv) == 0
        err = capsys.readouterr().err
        assert err.count("the options of mine are not literals in its file") == 1


@pytest.mark.parametrize(
    "text",
    [
        "from elsewhere.rings import Method as Ring\nclass Method(Ring): ...\n",
        "from ringmark.methods.ring import Method\n",
        "from ringmark.methods import ring\nclass Mixin: ...\nclass Method(Mixin, ring.Method): ...\n",
        "class Method(made()): ...\n",
        "from ringmark.methods import ring\nclass Method(ring.Method):\n    choices = made()\n",
        "from ringmark.methods import ring\nclass Method(ring.Method):\n    choices = 3\n",
        "from ringmark.methods import ring\nA = B\nB = A\nclass Method(ring.Method):\n    choices = A\n",
        "from . import ring\nA = {}\nA = {'x': ()}\nclass Method(ring.Method):\n    choices = A\n",
        "this is no python",
    ],
)
def test_what_a_plan_cannot_read_it_leaves_to_the_method(
    text: str, read_of: Callable[[str], Options | None]
) -> None:
    assert read_of(text) is None


def test_a_mixin_may_stand_before_the_method() -> None:
    class Mixin:
        pass

    ring = methods.load("ring")
    mixed = type("Method", (Mixin, ring), {"default_options": {"tau": 3}})
    assert mixed(tau=5).options == {**ring.default_options, "tau": 5}


@pytest.mark.parametrize("value", [0.5, "x", True])
def test_a_default_that_its_own_law_refuses_is_told_where_it_is_written(value: OptionValue) -> None:
    with pytest.raises(TypeError, match=r"its own default is refused: tau is .* write its choices down"):
        type("Method", (methods.load("ring"),), {"default_options": {"tau": value}})
