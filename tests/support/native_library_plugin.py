"""A pytest plugin that runs tests on a separately built native library, such as one with sanitizers.

FERRUM_LIBRARY_ASIDE=<_native...so> python -m pytest -p native_library_plugin tests/numeric/test_native_rows.py
"""

from __future__ import annotations

import importlib.util
import os
import sys

NAME = "ferrum.kernels.cpu._native"

spec = importlib.util.spec_from_file_location(NAME, os.environ["FERRUM_LIBRARY_ASIDE"])
assert spec is not None and spec.loader is not None
sys.modules[NAME] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[NAME])
