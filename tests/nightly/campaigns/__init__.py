"""Long runs with faults, such as `make campaign churn`. Their figures are in docs/proof/campaigns.md."""
