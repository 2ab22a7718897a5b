"""The npm package as its users get it: packed, installed in a separate project, type-checked, and run under node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.web.browser.conftest import ROOT
from tests.web.browser.sites import DEMO

import ptegpu
from ptegpu.site.serve import SiteServer
from ptegpu.site.site import make_site

WEB = ROOT / "web"


def sh(*command: Any, **options: Any) -> str:
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True, timeout=300, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project that has nothing but the package, with links to tools and peer dependencies."""
    folder = tmp_path_factory.mktemp("npm") / "consumer"
    shutil.copytree(WEB / "test" / "consumer", folder)
    packed = sh("npm", "pack", "--silent", "--pack-destination", folder, cwd=WEB).split()[-1]
    sh("npm", "install", "--silent", "--offline", "--no-save", folder / packed, cwd=folder)
    for name in ("webgpu", "@huggingface"):
        (folder / "node_modules" / name).symlink_to(WEB / "node_modules" / name)
    return folder


def test_it_brings_what_it_should(consumer: Path) -> None:
    package = consumer / "node_modules" / "ptegpu"
    assert {"LICENSE", "README.md", "package.json", "src", "types"} == {path.name for path in package.iterdir()}
    modules = {path.stem for path in (WEB / "src").glob("*.js")}
    assert modules == {path.stem for path in (package / "src").iterdir()}
    assert modules == {path.name.removesuffix(".d.ts") for path in (package / "types").iterdir()}
    assert [] == [e for e in json.loads((package / "package.json").read_text()).get("dependencies", [])]


def test_its_version_is_that_of_the_wheel() -> None:
    assert ptegpu.__version__ == json.loads((WEB / "package.json").read_text())["version"]


def test_its_types_check(consumer: Path) -> None:
    assert "" == sh(WEB / "node_modules" / ".bin" / "tsc", "-p", consumer)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a site."""
    site = make_site(DEMO / "digits.pte", tmp_path_factory.mktemp("sites") / "digits")
    with SiteServer(site.folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


def test_it_runs_under_node(consumer: Path, digits: str) -> None:
    renderer = subprocess.run([ROOT / "tools" / "swiftshader.sh"], text=True, stdout=subprocess.PIPE)
    if renderer.returncode != 0:
        pytest.skip("no SwiftShader")
    icd = renderer.stdout.strip()
    images = np.load(DEMO / "digits.npz")["images"]
    pictures = json.dumps([image.ravel().tolist() for image in images])
    env = os.environ | {"VK_ICD_FILENAMES": icd, "VK_DRIVER_FILES": icd}
    results = json.loads(sh("node", "run.mjs", digits, cwd=consumer, env=env, input=pictures).splitlines()[-1])
    with ptegpu.load(DEMO / "digits.pte") as program:
        expected = np.stack([np.asarray(program(image[None])).ravel() for image in images])
    np.testing.assert_allclose(np.array(results["scores"]), expected, atol=1e-5 * np.abs(expected).max())
    assert results["adapter"]["software"] and results["check"]["ok"] and ["forward"] == results["methods"]
    assert ["function"] * 4 == results["exported"]
    assert [True, True] == results["errors"]
