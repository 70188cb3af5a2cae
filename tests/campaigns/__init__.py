"""Long runs with faults: `make campaign churn`, `make campaign fuzz`. Their figures are kept in docs/campaigns.md."""
