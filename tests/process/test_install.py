"""Installation on a machine without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import REPOSITORY


@pytest.mark.soak
@pytest.mark.contract("4.failure to build the fast path")
def test_without_a_compiler_ferrum_installs_with_the_reference_kernels(tmp_path: Path) -> None:
    """The search path is empty; the editable installation is removed from the path."""
    (tmp_path / "bin").mkdir()
    environment = {**os.environ, "PATH": str(tmp_path / "bin")}
    for name in ("CC", "CXX"):
        environment.pop(name, None)
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, REPOSITORY]
    subprocess.run(command, env=environment, check=True)
    assert not list(site.rglob("_native*"))
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(site)!r})\n"
        "sys.meta_path[:] = [each for each in sys.meta_path if 'ScikitBuild' not in type(each).__name__]\n"
        "import ferrum\n"
        "from ferrum.runtime.backend import choose_kernels\n"
        "print(ferrum.__file__, *{choose_kernels('cpu', 'auto').kernels.name for _ in range(3)})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(site / "ferrum" / "__init__.py"), "reference"]
    assert done.stderr.count("using the slow reference kernels") == 1
