"""The wheel that `pip install .` makes holds every file that the code opens."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("images", "workloads", "nemesis", "checkers", "results", "harness", "faultline")

_BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
_USE = """
import sys
site = sys.argv[1]
sys.path = [site] + [path for path in sys.path if "faultline" not in path and path not in ("", sys.argv[2])]
import harness, images
assert harness.__file__.startswith(site), harness.__file__
from harness.cluster.systems import SYSTEMS
from harness.node_images.recipes import packages, recipes
from harness.suites.plan import load
from harness.suites.comparison import load as load_comparison
from results.pages import page
made = {recipe.name: recipe for recipe in recipes(tuple(SYSTEMS.values()))}
for name, recipe in made.items():
    print(name, recipe.hash)
assert packages() and load("smoke").cells and load_comparison("acks-and-isr")
assert all(page.asset(name) for name in page.ASSETS)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, unpacked."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    ended = subprocess.run([sys.executable, "-c", _BUILD, str(out)], cwd=copy, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
        wheel.extractall(out / "site")
    return out / "site"


def test_every_file_of_the_packages_is_in_the_wheel(site: Path) -> None:
    sources = {
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources - {path.relative_to(site) for path in site.rglob("*")} == set()
    assert Path("images/broker/Dockerfile") in sources


def test_images_suites_and_pages_come_out_of_the_wheel_as_out_of_the_tree(site: Path) -> None:
    """The recipes of `faultline images build` too: an image has the same tag from either."""
    from harness.cluster.systems import SYSTEMS
    from harness.node_images.recipes import recipes

    ended = subprocess.run(
        [sys.executable, "-P", "-c", _USE, str(site), str(ROOT)], cwd=site, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    here = "".join(f"{recipe.name} {recipe.hash}\n" for recipe in recipes(tuple(SYSTEMS.values())))
    assert ended.stdout == here
