"""Long runs with faults: `make campaign churn`, `orderly` or `fuzz`. Their figures are kept in docs/campaigns.md."""
