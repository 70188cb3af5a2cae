"""The paths of the shipped files for Prometheus."""

from pathlib import Path
from typing import Final

PROMETHEUS: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES: Final = PROMETHEUS / "rmqd-alerts.yml"
