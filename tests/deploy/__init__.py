"""Where what is shipped for Prometheus is."""

from pathlib import Path
from typing import Final

PROMETHEUS: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES: Final = PROMETHEUS / "rmqd-alerts.yml"
