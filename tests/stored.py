"""What notebooks have made with the same code, for fixtures of tests: `with served(): …`, see nbs/_dev/fixtures.py."""

import importlib.util
from contextlib import AbstractContextManager
from pathlib import Path

spec = importlib.util.spec_from_file_location("fixtures", Path(__file__).parents[1] / "nbs" / "_dev" / "fixtures.py")
fixtures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fixtures)
RESULTS = fixtures.install()


def served() -> AbstractContextManager:
    "Worlds and stages of benchmarks are looked up within the block; those that are not there are made and kept."
    return fixtures.served(RESULTS)
