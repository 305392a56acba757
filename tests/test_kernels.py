"""The kernels on the CPU: the reference against float64, the others' adapters against their real surfaces."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import exact
from flash_surfaces import SURFACES, Flash4Interface, flash2_modules
from ringmark import kernels
from ringmark.cell import Shape
from ringmark.errors import UserError
from ringmark.kernels import _gpu, cudnn, flash2, flash4, reference, sdpa_flash
from ringmark.kernels.reference import KERNEL as REFERENCE
from ringmark.methods.base import row_dot

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CAUSAL = [True, False]


def relative(found, want):
    """Norm of the difference over norm of what is right; nan counts as infinitely wrong."""
    error = float((found.double() - want).norm() / want.norm())
    return error if error == error else float("inf")


def run(kernel, problem, *, strided=False, with_out=True):
    """out, lse, dq, dk, dv of a kernel; `strided` hands everything over as a view of something larger."""
    view = _larger if strided else (lambda tensor: tensor)
    q, k, v, dout = (view(t) for t in (problem.q, problem.k, problem.v, problem.dout))
    out, lse = kernel.forward(q, k, v, problem.scale, problem.causal)
    delta = row_dot(dout, out)
    if strided:
        lse, delta = _larger(lse, dim=2), _larger(delta, dim=2)
    grads = kernel.backward(
        dout, q, k, v, lse, delta, problem.scale, problem.causal, out=view(out) if with_out else None
    )
    return dict(zip(("out", "dq", "dk", "dv"), (out, *grads))), lse


def _larger(tensor, dim=1):
    """The same numbers as the middle of a tensor that is longer in one dimension."""
    shape = list(tensor.shape)
    shape[dim] += 7
    return tensor.new_full(shape, float("nan")).narrow(dim, 3, tensor.shape[dim]).copy_(tensor)


def check(kernel, problem, limit, **how):
    found, lse = run(kernel, problem, **how)
    errors = {name: relative(found[name], problem.exact[name]) for name in exact.NAMES}
    errors["lse"] = relative(lse, exact_lse(problem))
    assert max(errors.values()) < limit, errors
    return errors


def exact_lse(problem):
    group = problem.q.shape[2] // problem.k.shape[2]
    keys = problem.k.double().repeat_interleave(group, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", problem.q.double(), keys) * problem.scale
    if problem.causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return scores.logsumexp(-1)


def rectangle(seqlen_q, seqlen_k, heads=(4, 2), head_dim=24, dtype=torch.float32):
    torch.manual_seed(seqlen_q)
    shapes = [(seqlen_q, heads[0]), (seqlen_k, heads[1]), (seqlen_k, heads[1]), (seqlen_q, heads[0])]
    made = [torch.randn(2, length, count, head_dim).to(dtype) for length, count in shapes]
    return exact.solved(*made, causal=False)


# The reference.


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("seqlen", [2, 7, 256, 257, 515])
def test_reference_is_exact_at_every_length(seqlen, heads, causal):
    """Within float32 rounding at, below and above the boundaries of its chunks (256 rows)."""
    check(REFERENCE, exact.make(seqlen, batch=2, heads=heads, head_dim=24, causal=causal), 2e-6)


@pytest.mark.parametrize("causal", CAUSAL)
def test_reference_takes_views(causal):
    check(REFERENCE, exact.make(300, batch=2, heads=(4, 2), causal=causal), 2e-6, strided=True)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(100, 333), (333, 100), (1, 300), (300, 2)])
def test_reference_is_exact_on_rectangles(seqlen_q, seqlen_k):
    check(REFERENCE, rectangle(seqlen_q, seqlen_k), 2e-6)


@pytest.mark.parametrize("scores_max", [1, 5000, 40000])
@pytest.mark.parametrize("causal", CAUSAL)
def test_reference_does_not_depend_on_its_chunks(monkeypatch, causal, scores_max):
    """One row at a time, a few, many: the same result; and no chunk is larger than it may be."""
    seen = []
    monkeypatch.setitem(reference.SCORES_MAX, "cpu", scores_max)
    scores = reference._scores
    monkeypatch.setattr(reference, "_scores", lambda *a: seen.append(scores(*a)) or seen[-1].clone())
    problem = exact.make(130, heads=(4, 2), causal=causal)
    check(REFERENCE, problem, 2e-6)
    assert max(chunk.numel() for chunk in seen) <= max(scores_max, 4 * 130)
    if causal:  # keys above the diagonal are not even looked at, but for those beside it
        assert sum(chunk.numel() for chunk in seen) < 0.8 * (2 * 4 * 130 * 130)


def test_reference_computes_float64_in_float64():
    problem = exact.make(70, heads=(4, 2), dtype=torch.float64)
    check(REFERENCE, problem, 1e-13)
    assert REFERENCE.forward(problem.q, problem.k, problem.v, 0.1, True)[1].dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reference_rounds_half_precision_once(dtype):
    """Its results are the nearest numbers to those that float32 arithmetic gives."""
    problem = exact.make(200, heads=(4, 2), dtype=dtype)
    found, lse = run(REFERENCE, problem)
    wide = exact.solved(
        problem.q.float(), problem.k.float(), problem.v.float(), problem.dout.float(), True, problem.scale
    )
    assert lse.dtype == torch.float32
    assert found["out"].dtype == dtype
    same = (found["out"] == wide.exact["out"].to(dtype)).float().mean()
    assert same > 0.995
    # delta was made from the rounded out, as everywhere; that is all that separates the gradients.
    unit = torch.finfo(dtype).eps
    assert max(relative(found[name], problem.exact[name]) for name in exact.NAMES) < unit


@pytest.mark.parametrize("causal", CAUSAL)
def test_reference_survives_huge_logits(causal):
    """Logits of +-1e4: finite everywhere, and still exact."""
    problem = exact.make(64, heads=(2, 2), causal=causal)
    q = problem.q * (1e4 / (problem.q.norm(dim=-1).max() * problem.k.norm(dim=-1).max() * problem.scale))
    huge = exact.solved(q, problem.k, problem.v, problem.dout, causal, problem.scale)
    assert exact_lse(huge).abs().max() > 3e3
    found, lse = run(REFERENCE, huge)
    assert all(torch.isfinite(t).all() for t in (*found.values(), lse))
    assert relative(found["out"], huge.exact["out"]) < 1e-3  # a logit of 1e4 is known to 1e-3 in float32
    assert relative(lse, exact_lse(huge)) < 1e-6


def test_a_causal_rectangle_is_refused():
    problem = rectangle(3, 5)
    with pytest.raises(ValueError, match="square"):
        REFERENCE.forward(problem.q, problem.k, problem.v, 1.0, True)


def test_backward_is_told_delta_and_lse_of_the_whole():
    """With lse and delta over more keys than it sees, a kernel gives those keys' share of the gradients."""
    problem = rectangle(50, 80)
    out, lse = REFERENCE.forward(problem.q, problem.k, problem.v, problem.scale, False)
    delta, total = row_dot(problem.dout, out), 0
    for keys in (slice(0, 30), slice(30, 80)):
        dq, dk, _ = REFERENCE.backward(
            problem.dout, problem.q, problem.k[:, keys], problem.v[:, keys], lse, delta, problem.scale, False
        )
        total = total + dq
        assert relative(dk, problem.exact["dk"][:, keys]) < 2e-6
    assert relative(total, problem.exact["dq"]) < 2e-6


# flash-attn 2, every release's surface.


@pytest.fixture
def installed(monkeypatch):
    """Installs a stand-in flash-attn, on a machine that looks as if it had a GPU."""

    def install(name):
        for key, module in flash2_modules(name).items():
            monkeypatch.setitem(sys.modules, key, module)

    monkeypatch.setattr(_gpu, "no_gpu", lambda capability: None)
    return install


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("name", SURFACES)
def test_flash2_hides_every_release(installed, name, causal):
    installed(name)
    assert flash2.KERNEL.unavailable() is None
    patched = "opt_bwd" in name
    assert flash2.KERNEL.needs_out is not patched
    assert flash2.KERNEL.version() == "flash-attn " + name.replace("+", " + ")
    problem = exact.make(90, batch=2, heads=(4, 2), causal=causal)
    check(flash2.KERNEL, problem, 2e-6, strided=True)
    if patched:
        check(flash2.KERNEL, problem, 2e-6, with_out=False)
    else:
        with pytest.raises(ValueError, match="opt_bwd"):
            run(flash2.KERNEL, problem, with_out=False)


@pytest.mark.parametrize("version", ["2.3.6", "1.0.9", "2.10.0", "3.0.0b1", "main"])
def test_flash2_refuses_releases_that_it_does_not_know(installed, version):
    """2.10 is later than 2.8: versions are compared as numbers, not as text."""
    installed("2.8.3")
    sys.modules["flash_attn"].__version__ = version
    assert f"flash-attn {version} is not one of 2.4 to 2.8" in flash2.KERNEL.unavailable()


def test_flash2_says_when_it_is_not_there(installed, monkeypatch):
    installed("2.8.3")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert flash2.KERNEL.unavailable() == "flash-attn is not installed"


def test_flash2_knows_the_head_sizes_of_a_build(installed, monkeypatch):
    """A build for some sizes alone is not asked for others; where nothing can be read all are taken."""
    installed("2.8.3")
    asked = [Shape(head_dim=dim, dtype=dtype) for dim in (64, 104, 128, 256) for dtype in ("bf16", "fp16")]
    assert [flash2.KERNEL.unfit(shape, CUDA) for shape in asked] == [None] * 8
    monkeypatch.setattr(flash2, "_built", lambda path: frozenset({("bf16", 128)}))
    fits = [(s.head_dim, s.dtype) for s in asked if flash2.KERNEL.unfit(s, CUDA) is None]
    assert fits == [(104, "bf16"), (128, "bf16")]
    assert "no bf16 kernel for head_dim 64" in flash2.KERNEL.unfit(Shape(head_dim=64), CUDA)


# FlashAttention-4.


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("with_out", [True, False])
def test_flash4_takes_delta_through_dlse(monkeypatch, causal, with_out):
    monkeypatch.setattr(flash4, "_interface", lambda: Flash4Interface)
    problem = exact.make(90, batch=2, heads=(4, 2), causal=causal)
    check(flash4.KERNEL, problem, 2e-6, with_out=with_out)
    assert flash4.KERNEL.needs_out is False


FIRST_PASS = """
def _bwd_preprocess(out, dout, dpsum, dlse=None, *, fake_mode):
    _bwd_preprocess.compile_cache[fake_mode] = (out, dout, dpsum, dlse)

_bwd_preprocess.compile_cache = {}
"""


def check_first_pass(interface):
    """It reads dout only where there is an out to multiply it with, and finds its own kernels."""
    shape = (2, 6, 3, 8)
    dout, out, nothing = torch.ones(shape), torch.ones(shape), torch.zeros(8).expand(shape)
    for given in (out, nothing):
        interface._bwd_preprocess(given, dout, "dpsum", "dlse", fake_mode=False)
        read = interface._bwd_preprocess.compile_cache.pop(False)
        assert read[0] is given
        assert read[1] is (dout if given is out else nothing)
        assert read[2:] == ("dpsum", "dlse")


@pytest.mark.parametrize("text", ["", "def _bwd_preprocess(dout, out): pass\n"])
def test_flash4_leaves_a_first_pass_alone_that_it_does_not_know(text):
    module = types.ModuleType("interface")
    exec(text, module.__dict__)
    before = dict(module.__dict__)
    flash4._spare_dout(module)
    assert module.__dict__ == before


def test_flash4_is_found_behind_flash2(monkeypatch, tmp_path):
    """flash-attn 2 has a package of the same name, and its 2.8 releases an early flash_attn/cute in it."""
    old, new = tmp_path / "old" / "flash_attn", tmp_path / "new" / "flash_attn"
    for folder, which in ((old, "early"), (new, "right")):
        (folder / "cute").mkdir(parents=True)
        (folder / "cute" / "__init__.py").touch()
        (folder / "cute" / "interface.py").write_text(f"WHICH = {which!r}\n{FIRST_PASS}")
    (old / "__init__.py").write_text("__version__ = '2.8.3'\n")
    (old / "flash_attn_interface.py").touch()
    about = tmp_path / "new" / "flash_attn_4-4.0.0b36.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn-4\nVersion: 4.0.0b36\n")
    (about / "RECORD").write_text("flash_attn/cute/interface.py,,\n")
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "old"), str(tmp_path / "new"), *sys.path])
    try:
        found = flash4._interface.__wrapped__()
        assert found.WHICH == "right"
        assert flash4.KERNEL.version() == "flash-attn-4 4.0.0b36"
        check_first_pass(found)
        assert flash2._interface().__file__ == str(old / "flash_attn_interface.py")
    finally:
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "flash_attn":
                del sys.modules[name]


# torch's own operators.


class _Operator:
    """An aten operator with a schema of one's own, called by name."""

    def __init__(self, arguments, compute):
        self.default, self._compute = self, compute
        named = [type("Argument", (), {"name": name}) for name in arguments]
        self._schema = type("Schema", (), {"arguments": named})

    def __call__(self, **values):
        assert list(values) == [known.name for known in self._schema.arguments]
        return self._compute(**values)


def _cudnn_forward(query, key, value, is_causal, scale, dropout_p, **rest):
    assert dropout_p == 0.0
    assert rest.get("compute_log_sumexp", True)
    assert rest.get("attn_bias") is None
    out, lse = REFERENCE.forward(*(t.transpose(1, 2) for t in (query, key, value)), scale, is_causal)
    return out.transpose(1, 2), lse.unsqueeze(-1), *[None] * 7


def _cudnn_backward(grad_out, query, key, value, out, logsumexp, is_causal, scale, max_q, max_k, **rest):
    assert (max_q, max_k) == (query.shape[2], key.shape[2])
    assert logsumexp.shape == (*query.shape[:3], 1)
    assert logsumexp.is_contiguous()
    assert rest["cum_seq_q"] is rest["cum_seq_k"] is None
    dout, q, k, v, out = (t.transpose(1, 2) for t in (grad_out, query, key, value, out))
    delta = row_dot(dout, out)
    grads = REFERENCE.backward(dout, q, k, v, logsumexp.squeeze(-1), delta, scale, is_causal)
    return [grad.transpose(1, 2) for grad in grads]


# torch 2.4: no bias, lengths before the random state. Later ones: as this torch says.
QKV = ["query", "key", "value"]
LENGTHS = ["cum_seq_q", "cum_seq_k", "max_q", "max_k"]
CUDNN_2_4 = {
    cudnn.FORWARD: [*QKV, "dropout_p", "is_causal", "return_debug_mask", "scale"],
    cudnn.BACKWARD: [
        "grad_out", *QKV, "out", "logsumexp", *LENGTHS, "dropout_p", "is_causal", "philox_seed",
        "philox_offset", "scale",
    ],
}  # fmt: skip


@pytest.mark.parametrize("release", ["2.4", "this"])
@pytest.mark.parametrize("causal", CAUSAL)
def test_cudnn_is_called_by_the_names_of_its_schema(monkeypatch, release, causal):
    for name, compute in ((cudnn.FORWARD, _cudnn_forward), (cudnn.BACKWARD, _cudnn_backward)):
        if release == "2.4":
            arguments = CUDNN_2_4[name]
        else:
            schema = getattr(torch.ops.aten, name).default._schema
            arguments = [argument.name for argument in schema.arguments]
        monkeypatch.setattr(torch.ops.aten, name, _Operator(arguments, compute))
    check(cudnn.KERNEL, exact.make(90, batch=2, heads=(4, 2), causal=causal), 2e-6, strided=True)
    problem = exact.make(8)
    with pytest.raises(ValueError, match="needs out"):
        run(cudnn.KERNEL, problem, with_out=False)


def test_cudnn_is_not_asked_where_its_backward_is_wrong(monkeypatch):
    """dout or out over more elements than 32 bits count, or a view of one head in such a tensor."""
    monkeypatch.setattr(
        cudnn, "by_name", lambda *_, **named: [named[name] for name in ("query", "key", "value")]
    )
    row = 40 * 128
    few = torch.empty(1, 256, 1, 128, device="meta")

    def backward(dout, out):
        lse = dout.new_empty(dout.shape[0], dout.shape[2], dout.shape[1])
        return cudnn.KERNEL.backward(dout, out, few, few, lse, lse, 1.0, False, out=out)

    fits = torch.empty(1, 2**31 // row, 40, 128, device="meta")
    beyond = torch.empty(1, 2**31 // row + 2, 40, 128, device="meta")
    backward(fits, fits)
    for dout, out in (
        (beyond, beyond),
        (beyond[:, :, :1], torch.empty(beyond[:, :, :1].shape, device="meta")),
        (torch.empty(beyond[:, :, :1].shape, device="meta"), beyond[:, :, :1]),
    ):
        with pytest.raises(UserError, match=r"\(419432 rows here\) span more than 2\*\*31 elements"):
            backward(dout, out)


@pytest.mark.parametrize("causal", CAUSAL)
def test_sdpa_flash_is_called_in_the_order_of_its_schema(monkeypatch, causal):
    def forward(q, k, v, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, debug, *, scale):
        assert (cum_q, cum_k, max_q, max_k) == (None, None, q.shape[1], k.shape[1])
        assert (dropout_p, debug) == (0.0, False)
        return *REFERENCE.forward(q, k, v, scale, is_causal), None, None, None

    def backward(
        grad_out, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, state, unused, *, scale
    ):
        assert (cum_q, cum_k, max_q, max_k) == (None, None, q.shape[1], k.shape[1])
        assert lse.is_contiguous()
        return REFERENCE.backward(grad_out, q, k, v, lse, row_dot(grad_out, out), scale, is_causal)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", forward)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", backward)
    check(sdpa_flash.KERNEL, exact.make(90, batch=2, heads=(4, 2), causal=causal), 2e-6, strided=True)
    with pytest.raises(ValueError, match="needs out"):
        run(sdpa_flash.KERNEL, exact.make(8), with_out=False)


def test_the_schemas_that_sdpa_flash_relies_on():
    """The stand-ins above have the order of this torch's own operators."""
    forward = [a.name for a in torch.ops.aten._flash_attention_forward.default._schema.arguments]
    backward = [a.name for a in torch.ops.aten._flash_attention_backward.default._schema.arguments]
    assert forward[:10] == [*QKV, *LENGTHS, "dropout_p", "is_causal", "return_debug_mask"]
    assert backward[:12] == ["grad_out", *QKV, "out", "logsumexp", *LENGTHS, "dropout_p", "is_causal"]


# Which kernel runs.


def test_every_file_of_the_folder_is_a_kernel():
    assert kernels.names() == ["cudnn", "flash2", "flash4", "reference", "sdpa_flash"]
    for name in kernels.names():
        assert kernels.load(name).name == name


def test_availability_is_asked_once_and_kept(monkeypatch):
    asked = []
    monkeypatch.setattr(type(flash2.KERNEL), "unavailable", lambda self: asked.append(1) or "no such thing")
    kernels._availability.cache_clear()
    try:
        assert kernels.availability()["flash2"] == "no such thing"
        assert kernels.availability()["reference"] is None
        assert len(asked) == 1
        kernels.availability().clear()
        assert "flash2" in kernels.availability(), "what is handed out is a copy"
    finally:
        kernels._availability.cache_clear()


@pytest.fixture
def all_here(monkeypatch):
    monkeypatch.setattr(kernels, "_availability", lambda: dict.fromkeys(kernels.names()))
    monkeypatch.setattr(flash2, "_extension", lambda: flash2_modules("2.8.3")["flash_attn_2_cuda"])
    monkeypatch.setattr(flash4, "_capability", lambda device: 9)


def test_auto_takes_the_fastest_that_fits(all_here, monkeypatch):
    def chosen(device=CUDA, **shape):
        return kernels.select("auto", Shape(**shape), device).name

    assert chosen() == "flash4"
    assert chosen(dtype="fp16", head_dim=64) == "flash4"
    assert chosen(dtype="fp32") == chosen(dtype="fp64") == chosen(device=CPU) == "reference"
    assert chosen(head_dim=20) == "reference"
    assert chosen(head_dim=256) == "flash4"
    monkeypatch.setattr(flash4, "_capability", lambda device: 10)
    assert chosen(head_dim=256) == "flash2", "Blackwell's kernel for 256 takes no dlse; cuDNN stops at 128"
    missing = {"flash4": "not installed", "flash2": "not installed"}
    monkeypatch.setattr(kernels, "_availability", lambda: dict.fromkeys(kernels.names()) | missing)
    assert chosen() == "cudnn"
    assert chosen(head_dim=256) == "sdpa_flash"


def test_a_kernel_that_cannot_is_refused_with_the_reason(all_here):
    assert kernels.select("sdpa_flash", Shape(), CUDA) is sdpa_flash.KERNEL
    with pytest.raises(UserError, match="it runs on CUDA devices, not on cpu; try kernel auto"):
        kernels.select("sdpa_flash", Shape(), CPU)
    with pytest.raises(UserError, match="head_dim must be a multiple of 8 up to 128, it is 256"):
        kernels.select("cudnn", Shape(head_dim=256), CUDA)
    with pytest.raises(UserError, match="it computes bf16 and fp16, not fp32"):
        kernels.select("flash2", Shape(dtype="fp32"), CUDA)
    with pytest.raises(UserError, match="did you mean 'flash2'"):
        kernels.select("flash22", Shape(), CUDA)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_every_gpu_kernel_says_so():
    reasons = {name: kernels.load(name).unavailable() for name in ("flash2", "flash4", "sdpa_flash")}
    assert set(reasons.values()) == {"there is no CUDA device"}
    with pytest.raises(UserError, match="there is no CUDA device; try kernel auto"):
        kernels.select("flash4", Shape(), CPU)


def test_an_old_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    assert flash4.KERNEL.unavailable() == "the GPU has compute capability 8.0, it needs 9.0 or later"
    assert sdpa_flash.KERNEL.unavailable() is None


def test_delta_of_more_rows_than_a_chunk_is_that_of_every_row() -> None:
    dout, out = torch.randn(2, 1, 9000, 1, 2, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = (dout.float() * out.float()).sum(-1).transpose(1, 2)
    assert torch.equal(row_dot(dout, out), expected)
    assert row_dot(dout.double(), out.double()).dtype == torch.float64
