"""Tools in a Python file, as in the Gemini tutorials on function calling: place → coordinates → weather.

    ./run_proxy.sh --set graft_tools=examples/weather.py

Every public function with a docstring is a tool. The data is in this file, so that no network is needed.
"""

import asyncio
import time
from typing import Literal, TypedDict

from toolgraft import ToolError, tool

PAUSE = 0.5  # seconds, like a service on the network


class Coordinates(TypedDict):
    latitude: float
    longitude: float


PLACES: dict[str, Coordinates] = {
    "cairo": {"latitude": 30.04, "longitude": 31.24},
    "london": {"latitude": 51.51, "longitude": -0.13},
    "oslo": {"latitude": 59.91, "longitude": 10.75},
    "paris": {"latitude": 48.86, "longitude": 2.35},
    "tokyo": {"latitude": 35.68, "longitude": 139.69},
}
SKIES = {
    "cairo": (31, "sunny"),
    "london": (14, "rain"),
    "oslo": (-3, "snow"),
    "paris": (19, "cloudy"),
    "tokyo": (22, "clear"),
}


def get_coordinates(place: str) -> Coordinates:
    """Find where a place is.

    Args:
        place: The name of a city, such as Oslo.
    """
    time.sleep(PAUSE)  # a plain function runs in a thread: it may block
    if place.lower() not in PLACES:
        raise ToolError(f"{place} is unknown; known places: {', '.join(sorted(PLACES))}")
    return PLACES[place.lower()]


@tool(timeout=5, idempotent=True, cache_ttl=600)
async def get_weather(
    latitude: float, longitude: float, unit: Literal["celsius", "fahrenheit"] = "celsius"
) -> dict[str, str | float]:
    """Get the weather at a point, now.

    Args:
        latitude: Degrees north, as get_coordinates gives them.
        longitude: Degrees east, as get_coordinates gives them.
        unit: The unit of the temperature.
    """
    await asyncio.sleep(PAUSE)
    near = min(PLACES, key=lambda name: _distance(PLACES[name], latitude, longitude))
    if _distance(PLACES[near], latitude, longitude) > 1:
        raise ToolError("there is no weather station within a degree of that point")
    degrees, sky = SKIES[near]
    return {"sky": sky, unit: degrees if unit == "celsius" else degrees * 9 / 5 + 32}


def _distance(there: Coordinates, latitude: float, longitude: float) -> float:
    return abs(there["latitude"] - latitude) + abs(there["longitude"] - longitude)
