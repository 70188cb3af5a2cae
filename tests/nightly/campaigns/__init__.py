"""Long runs with faults: `make campaign churn`, `orderly` or `fuzz`. Their figures are in docs/proof/campaigns.md."""
