import pytest

from tests.soak.slopes import LIMITS, Limit, Sample, findings, least_squares


@pytest.mark.parametrize(
    ("points", "slope"),
    [
        ([(0, 1), (1, 3)], 2.0),
        ([(1, 5), (2, 5), (9, 5)], 0.0),
        ([(0, 3), (1, 1), (2, 2)], -0.5),
        ([(1, 1), (2, 2), (3, 2)], 0.5),
    ],
)
def test_the_slope_is_that_of_the_line_that_fits_best(points: list[tuple[float, float]], slope: float) -> None:
    assert least_squares(points) == pytest.approx(slope)


@pytest.mark.parametrize("points", [[], [(1, 1)], [(2, 1), (2, 5)]])
def test_samples_without_a_slope_are_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="no slope"):
        least_squares(points)


def samples(memory: float = 0, descriptors: float = 0, tasks: float = 0) -> list[Sample]:
    """Each grows so much in 1,000 requests."""
    return [Sample(n * 500, 1e8 + memory * n / 2, 30 + descriptors * n / 2, 13 + tasks * n / 2) for n in range(6)]


def test_growth_within_the_limits_is_no_finding() -> None:
    assert findings(samples()) == []
    assert findings(samples(memory=3 * 2**20, descriptors=4, tasks=4)) == []


@pytest.mark.parametrize(
    ("grown", "sentence"),
    [
        ({"memory": 5 * 2**20}, "memory: 5.0 MiB more per 1000 requests, and more than 4 are a leak"),
        ({"descriptors": 6}, "descriptors: 6.0 descriptors more per 1000 requests, and more than 5 are a leak"),
        ({"tasks": 1000}, "tasks: 1000.0 tasks more per 1000 requests, and more than 5 are a leak"),
    ],
)
def test_growth_is_reported_in_a_sentence(grown: dict[str, float], sentence: str) -> None:
    assert findings(samples(**grown)) == [sentence]


def test_each_limit_has_its_own_unit() -> None:
    assert Limit("memory", 1, "MiB", scale=2**20).slope(samples(memory=2**21)) == pytest.approx(2)
    assert [limit.of for limit in LIMITS] == ["memory", "descriptors", "tasks"]
