"""A short run of the fuzzer, and the cases that once failed."""

from pathlib import Path

import pytest

from tests.fuzz import cases, corpus, run

REGRESSIONS = [
    tuple(map(int, line.split()[:2]))
    for line in (Path(__file__).parent / "regressions.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("seed", "number"), REGRESSIONS)
def test_fuzz_cases_raise_only_user_errors(seed, number):
    kind, data = cases.case(seed, number)
    cases.run(kind, data, number)


def test_case_depends_only_on_seed_and_number():
    assert cases.case(0, 5) == cases.case(0, 5) != cases.case(1, 5)


def test_corpus_images_are_decoded():
    for name, data in corpus.images().items():
        assert cases.run("image", data, 0), name
        assert cases.run("image", data, 1), name


@pytest.mark.slow
def test_four_thousand_mutations(capsys):
    failures: list[dict] = []
    assert run.batch(20, 0, 4_000, failures) > 800  # usable: not everything fails early
    assert failures == []
