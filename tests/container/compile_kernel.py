"""Runs inside the image, without a card: what Triton does at the first kernel of a live server, as its user."""

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from appliance.engine import kernel_cache

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def double(p_in, p_out, n, b_n: tl.constexpr):
    o_n = tl.program_id(0) * b_n + tl.arange(0, b_n)
    tl.store(p_out + o_n, 2 * tl.load(p_in + o_n, mask=o_n < n), mask=o_n < n)
"""

LAUNCHER = b"""
#include <Python.h>
static PyObject* answer(PyObject* self, PyObject* args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "launcher", NULL, -1, methods};
PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&module); }
"""

INTERPRET = """
import sys, torch, triton; sys.path.insert(0, sys.argv[1])
from double import double
x = torch.tensor([1.0, 2.0, 3.0]); y = torch.empty_like(x)
double[(1,)](x, y, 3, b_n=4)
print(y.tolist())
"""

for variable in kernel_cache.FOLDERS:
    if warning := kernel_cache.settle(os.environ, variable):
        logging.warning(warning)
folder = tempfile.mkdtemp()
Path(folder, "double.py").write_text(KERNEL)
sys.path.insert(0, folder)
from double import double  # noqa: E402 - written just now
from triton import compile as compile_kernel  # noqa: E402 - after the cache is settled
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.build import compile_module_from_src  # noqa: E402

launcher = compile_module_from_src(LAUNCHER.decode(), "launcher")
source = ASTSource(
    fn=double, signature={"p_in": "*fp32", "p_out": "*fp32", "n": "i32", "b_n": "constexpr"}, constexprs={(3,): 128}
)
kernel = compile_kernel(source, target=GPUTarget("cuda", 90, 32))
interpreted = subprocess.run(
    [sys.executable, "-c", INTERPRET, folder],
    env={**os.environ, "TRITON_INTERPRET": "1"},
    capture_output=True,
    text=True,
    check=True,
)
print(
    json.dumps(
        {
            "launcher": launcher.answer(),
            "cubin_bytes": len(kernel.asm["cubin"]),
            "interpreted": json.loads(interpreted.stdout),
        }
    )
)
