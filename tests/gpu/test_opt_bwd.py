"""The opt_bwd patch on this machine's GPU: skipped without one, or without a patched flash-attn."""

import pytest

torch = pytest.importorskip("torch")
extension = pytest.importorskip("flash_attn_2_cuda", exc_type=ImportError)
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
if "softmax_d" not in extension.bwd.__doc__:
    pytest.skip("this flash-attn build does not have the opt_bwd patch", allow_module_level=True)

import prove_opt_bwd  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "check",
    [
        prove_opt_bwd.check_build,
        prove_opt_bwd.check_accuracy,
        prove_opt_bwd.check_two_key_blocks,
        prove_opt_bwd.check_python_surface,
        prove_opt_bwd.check_varlen,
        prove_opt_bwd.check_poisoned_memory,
        prove_opt_bwd.check_time,
    ],
)
def test_opt_bwd(check):
    assert check()
