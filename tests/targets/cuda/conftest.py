"""Set-up of the CUDA tests: the corpus, compiled once per session for all of its processes."""

from __future__ import annotations

import os

import pytest
from targets.cuda.corpus import Corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return Corpus(shared / "cuda_corpus")
