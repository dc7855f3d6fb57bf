"""Names of array types in compiled functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Array = NDArray[Any]
Bytes = NDArray[np.uint8]
